package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

var (
	// ErrNotPrivate reports that another account can write to a directory.
	ErrNotPrivate = errors.New("directory is not private")
	// ErrUntrusted reports that another account can write to a file.
	ErrUntrusted = errors.New("others can write to it")
)

// AccessError reports that another account can write to a file or directory.
type AccessError struct {
	Path string
	// Reason is [ErrNotPrivate] or [ErrUntrusted].
	Reason error
	// Cause and Remedy are phrases.
	Cause, Remedy string
}

// Error returns the path, the reason, the cause and the remedy.
func (e *AccessError) Error() string {
	return fmt.Sprintf("check %s: %v: %s; %s", e.Path, e.Reason, e.Cause, e.Remedy)
}

// Unwrap returns Reason.
func (e *AccessError) Unwrap() error { return e.Reason }

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
