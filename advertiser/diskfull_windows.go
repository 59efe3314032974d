package advertiser

import (
	"errors"

	"golang.org/x/sys/windows"
)

// diskFull tells whether err came from a disk without room.
func diskFull(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL)
}
