package shim

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// log returns the log. It reads the policy if editBundle has not: most calls log nothing.
func (s *shim) log() *logrus.Logger {
	if s.logger == nil {
		p, err := policy.Read(s.stateDir)
		s.logger = newLog(s.stateDir, p, err)
	}
	return s.logger
}

// newLog returns the log that the node policy p configures, or the default one if err, that of reading
// p, is not nil. It writes nothing into a state directory that others can write to: they could make the
// log's path a link to another file.
func newLog(stateDir string, p policy.Policy, err error) *logrus.Logger {
	log := errlog.NewLogger(io.Discard)
	if errors.Is(err, access.ErrNotPrivate) {
		return log
	}
	if err != nil {
		p = policy.Default()
	}
	log.SetOutput(&logFile{path: p.Shim.LogPath(stateDir)})
	p.Log.Configure(log)
	return log
}

// maxLogBytes is the size at which the log is renamed to a backup.
const maxLogBytes = 1 << 20

// logFile is a log file that is opened when something is written. Errors are
// ignored: a full disk must not stop a container. Others must not be able to write to the file.
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
		if err := access.MakePrivate(filepath.Dir(path)); err != nil {
			return nil, err
		}
	}
	if info, err := os.Lstat(path); err == nil && info.Size() > maxLogBytes {
		// On Windows this fails while another start has the log open.
		if err := os.Rename(path, path+".1"); err != nil && info.Size() > 2*maxLogBytes {
			return nil, err
		}
	}
	return access.OpenLog(path)
}
