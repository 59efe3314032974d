// Package trusted tells whether a file says what the system's administrators
// wrote. We run as the system, and some files name programs that we run then, or
// say what is put back into other programs' configuration.
package trusted

import (
	"errors"
	"path/filepath"
)

// ErrUntrusted tells that somebody else could have written a file.
var ErrUntrusted = errors.New("others can write it")

// Check returns an error that matches [ErrUntrusted] when anybody but the
// system, its administrators and the calling user owns the file at path, or can
// write to it, or on Windows can put another into its folder: there the folders
// below C:\ProgramData let every user do so, unless they are closed.
func Check(path string) error { return check(filepath.Clean(path)) }

// CheckOwner is [Check] for the file's owner alone, where a folder's rights are
// known to say more than they mean.
func CheckOwner(path string) error { return checkOwner(filepath.Clean(path)) }
