package durable

import (
	"errors"
	"io/fs"
	"path/filepath"
)

var (
	// ErrNotPrivate reports that another account can write to a directory.
	ErrNotPrivate = errors.New("directory is not private")
	// ErrUntrusted reports that another account can write to a file.
	ErrUntrusted = errors.New("others can write it")
)

// MakePrivate creates dir and its missing parents so that only the calling user
// (on Windows: SYSTEM and Administrators) has access. An existing directory is left
// as it is: the result is that of [CheckPrivate].
func MakePrivate(dir string) error {
	err := CheckPrivate(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := createPrivate(filepath.Clean(dir)); err != nil {
		return err
	}
	// Another process may have created it first.
	return CheckPrivate(dir)
}
