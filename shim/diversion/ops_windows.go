package diversion

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/win32"
)

func systemOps() fileOps {
	return fileOps{
		copy: copyFile, link: os.Link, rename: durable.Move, replace: durable.Rename, remove: os.RemoveAll,
		renameAtBoot: func(from, to string) (func() error, error) {
			err := win32.RenameAtBoot(from, to)
			return func() error { return win32.CancelRenameAtBoot(from) }, err
		},
		isInUse: func(err error) bool {
			return errors.Is(err, windows.ERROR_ACCESS_DENIED) || errors.Is(err, windows.ERROR_SHARING_VIOLATION) ||
				errors.Is(err, windows.ERROR_USER_MAPPED_FILE)
		},
	}
}

func copyAccess(from string, to *os.File) error { return access.Copy(from, to) }
