// Package durable writes files atomically and durably.
package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	tempPrefix             = ".directx-nri-tmp-"
	tempPerm   fs.FileMode = 0o600 // mode of [os.CreateTemp]
)

// IsTemp reports whether name is that of a temporary file of this package, left by a process that
// was killed.
func IsTemp(name string) bool { return strings.HasPrefix(name, tempPrefix) }

// leftoverAge is the age from which a temporary file is not one of a program that runs.
const leftoverAge = 10 * time.Minute

// RemoveTemps removes the temporary files that killed programs have left in dir, which need not exist. Younger
// ones stay, because a program may write them now.
func RemoveTemps(dir string) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, file := range files {
		if !IsTemp(file.Name()) {
			continue
		}
		if info, infoErr := file.Info(); infoErr == nil && time.Since(info.ModTime()) > leftoverAge {
			err = errors.Join(err, Remove(filepath.Join(dir, file.Name())))
		}
	}
	return err
}

// Read returns at most limit bytes of the file at path, opened with [Open].
func Read(path string, limit int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	var data bytes.Buffer
	if info, err := f.Stat(); err == nil {
		data.Grow(int(min(info.Size(), limit)) + bytes.MinRead)
	}
	_, err = data.ReadFrom(io.LimitReader(f, limit))
	return data.Bytes(), errors.Join(err, f.Close())
}

// Replace writes data to path atomically and syncs the file and its directory. It removes what killed programs have
// left there.
func Replace(path string, data []byte, perm fs.FileMode) error {
	_ = RemoveTemps(filepath.Dir(path)) // A later call tries again.
	return write(path, data, perm, true, replaceFile)
}

// ReplaceUnsynced is [Replace] without syncing, for a file that is not needed after a crash of the
// system.
func ReplaceUnsynced(path string, data []byte, perm fs.FileMode) error {
	return write(path, data, perm, false, Rename)
}

// Update is [Replace], but does nothing if the file has the content already.
func Update(path string, data []byte, perm fs.FileMode) error {
	if content, err := Read(path, int64(len(data))+1); err == nil && bytes.Equal(content, data) {
		return nil
	}
	return Replace(path, data, perm)
}

// Create is [Replace] for a new file. Its error matches [fs.ErrExist] if path exists, so only one
// of several concurrent callers succeeds. Create does not sync the directory: after a power loss,
// the file is complete or does not exist.
func Create(path string, data []byte, perm fs.FileMode) error {
	return write(path, data, perm, true, Move)
}

// write writes a temporary file, and publish renames it to path.
func write(path string, data []byte, perm fs.FileMode, sync bool, publish func(temp, path string) error) (err error) {
	defer func() {
		// Without the random name of the temporary file, callers that retry can compare errors.
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			err = errno
		}
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	f, err := os.CreateTemp(filepath.Dir(path), tempPrefix)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && perm != tempPerm {
		err = f.Chmod(perm)
	}
	if err == nil && sync {
		err = f.Sync()
	}
	// Close before the rename: Windows does not rename an open file, and some file systems report a
	// full disk only on close.
	if err = errors.Join(err, f.Close()); err == nil {
		err = publish(f.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, Remove(f.Name()))
	}
	return err
}

// Retry calls do while its error is one of temporary, for at most a second. It waits for programs
// that briefly use a file without sharing it, such as virus scanners and the shim.
func Retry(do func() error, temporary ...error) error {
	for deadline := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		err := do()
		if !slices.ContainsFunc(temporary, func(t error) bool { return errors.Is(err, t) }) || time.Now().After(deadline) {
			return err
		}
	}
}

// MakeReadable creates a directory that all users can read, and its missing parents, whatever the umask is.
func MakeReadable(dir string) error {
	if Exists(dir) {
		return nil
	}
	if err := MakeReadable(filepath.Dir(dir)); err != nil {
		return err
	}
	// #nosec G301 G302 -- They have no secrets.
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// Exists reports whether there is a file at path. It returns true if that is unknown.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// Remove removes the file at path if it exists.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
