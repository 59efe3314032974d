//go:build unix

package diversion

import (
	"errors"
	"os"
	"syscall"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// systemOps returns the operations of a Unix system, on which the tests run. It has no renames at boot.
func systemOps() fileOps {
	return fileOps{
		copy: copyFile, link: os.Link, rename: durable.Move, replace: durable.Rename, remove: os.RemoveAll,
		renameAtBoot: func(string, string) (func() error, error) { return func() error { return nil }, nil },
		isInUse:      func(err error) bool { return errors.Is(err, syscall.ETXTBSY) },
	}
}

func copyAccess(string, *os.File) error { return nil }
