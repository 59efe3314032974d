package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"directx-nri/internal/durable"
)

// replace puts data in the place of the file at path in one step, with its mode
// and owner. It is not synced: no container of this boot survives what a sync
// would guard against.
func replace(path string, data []byte) (err error) {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("edit %s: %w", path, err)
	}
	temp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".directx-nri")
	defer func() {
		if err != nil {
			_ = os.Remove(temp) // The bundle goes with the start that fails.
			err = fmt.Errorf("edit %s: %w", path, err)
		}
	}()
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		// The process' umask may have taken something away.
		err = f.Chmod(info.Mode().Perm())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := keepOwner(temp, info); err != nil {
		return err
	}
	return durable.Rename(temp, path)
}

// maxLog is the size in bytes from which on a log begins anew. The one before
// is kept.
const maxLog = 1 << 20

// logFile is a log that is opened when there is something to write. What
// cannot be written is dropped: a full disk must not stop a container, and
// there is no other place to tell it.
type logFile struct {
	path string
	file *os.File
}

// Write implements [io.Writer].
func (l *logFile) Write(line []byte) (int, error) {
	if l.file == nil {
		file, err := openLog(l.path)
		if err != nil {
			return len(line), nil //nolint:nilerr // see the type's comment
		}
		l.file = file
	}
	_, _ = l.file.Write(line) // See the type's comment.
	return len(line), nil
}

func openLog(path string) (*os.File, error) {
	if _, err := os.Lstat(filepath.Dir(path)); err != nil {
		if err := durable.MakePrivate(filepath.Dir(path)); err != nil {
			return nil, err
		}
	}
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		// Two that do this at once lose the older log at worst. On Windows it
		// cannot be done while another start has the log open: a later one does it.
		if err := os.Rename(path, path+".1"); err != nil && info.Size() > 2*maxLog {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}
