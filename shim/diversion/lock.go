package diversion

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"github.com/directx-nri/directx-nri/internal/access"
)

const (
	lockName          = "lock"
	lockRetryInterval = 20 * time.Millisecond
	lockAttempts      = 50
)

// errRemoved means that the process that had the lock has removed it.
var errRemoved = errors.New("another process removes the lock")

// lock waits until no other process changes the diversion. It creates the directory of the real shim, which
// unlock removes with the lock if nothing else is in it.
func (d *Diversion) lock(ctx context.Context) (unlock func(), err error) {
	path := filepath.Join(d.workDir(), lockName)
	for range lockAttempts {
		var lock *flock.Flock
		lock, err = openLock(ctx, path)
		switch {
		case err == nil:
			return func() { d.unlock(lock, path) }, nil
		case errors.Is(err, errRemoved) || errors.Is(err, fs.ErrNotExist) || d.files.isInUse(err):
			time.Sleep(lockRetryInterval) // Windows does not open a file that is being removed.
		default:
			return nil, err
		}
	}
	return nil, err
}

// openLock creates the lock at path and waits for it.
func openLock(ctx context.Context, path string) (*flock.Flock, error) {
	if err := access.MakePrivate(filepath.Dir(path)); err != nil {
		return nil, err
	}
	lock := flock.New(path, flock.SetPermissions(0o600), flock.SetFlag(os.O_CREATE|os.O_RDWR))
	_, err := lock.TryLockContext(ctx, lockRetryInterval)
	if err == nil && !isCurrent(lock, path) {
		err = errRemoved
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// isCurrent reports whether the locked file is still the one at path.
func isCurrent(lock *flock.Flock, path string) bool {
	locked, err := lock.Stat()
	if err != nil {
		return false
	}
	current, err := os.Lstat(path)
	return err == nil && os.SameFile(locked, current)
}

func (d *Diversion) unlock(lock *flock.Flock, path string) {
	entries, err := os.ReadDir(d.workDir())
	isLast := err == nil && len(entries) == 1
	removed := isLast && os.Remove(path) == nil // Windows does not remove an open file.
	_ = lock.Close()
	if isLast && (removed || os.Remove(path) == nil) {
		_ = os.Remove(d.workDir())
	}
}
