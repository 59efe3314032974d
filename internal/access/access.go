// Package access controls which accounts can write to files and directories.
package access

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/directx-nri/directx-nri/internal/errlog"
)

var (
	// ErrNotPrivate reports that another account can write to a directory.
	ErrNotPrivate = errors.New("directory is not private")
	// ErrUntrusted reports that another account can write to a file.
	ErrUntrusted = errors.New("others can write to it")
)

// newError returns an error about a file or directory that other accounts can write. reason is
// [ErrNotPrivate] or [ErrUntrusted].
func newError(path string, reason error, cause, fix string) error {
	return errlog.WithRemedy(fmt.Errorf("check %s: %w: %s", path, reason, cause), fix)
}

// MakePrivate creates dir and its missing parents so that only the calling user (on Windows: SYSTEM
// and Administrators) has access. An existing directory is left as it is: the result is that of
// [CheckPrivate].
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
