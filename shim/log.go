package shim

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/bounded"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// newLog returns the log in stateDir. [decision.Open] sets it as the node policy has it.
func newLog(stateDir string) *logrus.Logger {
	return errlog.NewLogger(logFile(filepath.Join(stateDir, paths.ShimLogFile)))
}

// stateTimeout is how long a start waits for the state directory when it does not need it.
const stateTimeout = time.Second

// inTime calls do, which writes to the state directory, and waits for stateTimeout at most: when its disk does not
// respond, a container that does not need it still starts, and the cause of a refusal is still reported.
func inTime(do func()) {
	ctx, cancel := context.WithTimeout(context.Background(), stateTimeout)
	defer cancel()
	_ = bounded.Do(ctx, func(context.Context) error {
		do()
		return nil
	})
}

// maxLogBytes is the size at which the log is renamed to a backup.
const maxLogBytes = 1 << 20

// logFile is the path of a log file. Errors are ignored: a full disk must not stop a container. In a directory that
// others can write to, the path could be a link to another file, so nothing is written.
type logFile string

// Write implements [io.Writer].
func (l logFile) Write(line []byte) (int, error) {
	path := string(l)
	if access.MakePrivate(filepath.Dir(path)) != nil {
		return len(line), nil
	}
	if info, err := os.Lstat(path); err == nil && info.Size() > maxLogBytes {
		_ = os.Rename(path, path+".1") // On Windows this fails while another start writes.
	}
	if f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err == nil {
		_, _ = f.Write(line)
		_ = f.Close()
	}
	return len(line), nil
}
