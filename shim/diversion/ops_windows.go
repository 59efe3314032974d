package diversion

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/win32"
)

func copyAccess(from string, to *os.File) error { return access.Copy(from, to) }

func renameAtBoot(from, to string) (cancel func() error, err error) {
	err = win32.RenameAtBoot(from, to)
	return func() error { return win32.CancelRenameAtBoot(from) }, err
}

func isInUse(err error) bool {
	return errors.Is(err, windows.ERROR_ACCESS_DENIED) || errors.Is(err, windows.ERROR_SHARING_VIOLATION) ||
		errors.Is(err, windows.ERROR_USER_MAPPED_FILE)
}
