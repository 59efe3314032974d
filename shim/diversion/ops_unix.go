//go:build unix

package diversion

import (
	"errors"
	"os"
	"syscall"
)

// find is for Windows, as is all of the diversion: other systems run its tests.
func find() (dir string, left []string, err error) { return "", nil, errors.ErrUnsupported }

func copyAccess(string, *os.File) error { return nil }

func renameAtBoot(string, string) (cancel func() error, err error) {
	return func() error { return nil }, nil
}

func isInUse(err error) bool { return errors.Is(err, syscall.ETXTBSY) }
