// Package durable writes files that survive a crash, in folders that only the
// system's own account can read.
//
// A file is written under a temporary name in its own folder, synced, closed,
// and only then given its name. So a reader sees the whole file or none, and
// what was there before stays there when anything goes wrong.
package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tempPrefix begins the name of every file that is not finished.
const tempPrefix = ".directx-nri-tmp-"

// tempPerm is what [os.CreateTemp] gives a file.
const tempPerm fs.FileMode = 0o600

// ErrNotPrivate tells that a folder can be written by somebody else, so that
// nothing in it can be trusted.
var ErrNotPrivate = errors.New("folder is not private")

// IsTemp tells whether name is that of an unfinished file of this package,
// left by a process that was killed.
func IsTemp(name string) bool { return strings.HasPrefix(name, tempPrefix) }

// Read returns at most limit bytes of the file at path, which is opened as by [Open].
func Read(path string, limit int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, limit))
	return data, errors.Join(err, f.Close())
}

// Replace writes data to path and syncs it and its folder. What path named
// before is replaced in one step, or stays.
func Replace(path string, data []byte, perm fs.FileMode) error {
	return write(path, data, perm, replaceFile, syncFolder)
}

// Create is Replace for a file that must not exist yet: of several processes
// that create path at once, one succeeds and the others get an error that
// matches [fs.ErrExist]. The content is synced, the folder is not: after a power
// loss the file is whole or absent.
func Create(path string, data []byte, perm fs.FileMode) error {
	return write(path, data, perm, linkFile, func(string) error { return nil })
}

func write(path string, data []byte, perm fs.FileMode, publish func(temp, path string) error, sync func(folder string) error) (err error) {
	folder := filepath.Dir(path)
	f, err := os.CreateTemp(folder, tempPrefix)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, unnamed(err))
	}
	temp := f.Name()
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, errors.Join(unnamed(err), Remove(temp)))
		}
	}()
	_, err = f.Write(data)
	if err == nil && perm != tempPerm {
		err = f.Chmod(perm)
	}
	if err == nil {
		err = f.Sync()
	}
	// Windows renames no open file, and a file system may report only here
	// that the data did not fit.
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = publish(temp, path); err != nil {
		return err
	}
	return sync(folder)
}

// unnamed is err without the temporary name, which is another one each time:
// whoever tries again tells one error once.
func unnamed(err error) error {
	var ofPath *fs.PathError
	if errors.As(err, &ofPath) && IsTemp(filepath.Base(ofPath.Path)) {
		return fmt.Errorf("%s: %w", ofPath.Op, ofPath.Err)
	}
	var ofLink *os.LinkError
	if errors.As(err, &ofLink) && IsTemp(filepath.Base(ofLink.Old)) {
		return fmt.Errorf("%s: %w", ofLink.Op, ofLink.Err)
	}
	return err
}

// Remove removes the file at path, which need not be there.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
