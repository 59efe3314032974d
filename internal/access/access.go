// Package access controls which accounts can write to files and directories.
package access

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/directx-nri/directx-nri/internal/errlog"
)

// ErrUntrusted reports that another account can change or replace a file or directory.
var ErrUntrusted = errors.New("others can change it")

func newError(path, cause string) error {
	return errlog.WithRemedy(fmt.Errorf("check %s: %w: %s", path, ErrUntrusted, cause),
		"when you trust what is there, let only administrators own and change it; otherwise remove it or use another directory")
}

// CreatePrivate creates dir and its missing parents so that only the calling user (on Windows: SYSTEM
// and Administrators) has access. An existing directory is left as it is, and its owner is checked.
func CreatePrivate(dir string) error {
	if err := createPrivate(filepath.Clean(dir)); err != nil {
		return err
	}
	return CheckOwner(dir)
}

// MakePrivate is [CreatePrivate] and [CheckPrivate].
func MakePrivate(dir string) error {
	if err := CreatePrivate(dir); err != nil {
		return err
	}
	return CheckPrivate(dir)
}
