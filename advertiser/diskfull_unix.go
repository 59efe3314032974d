//go:build !windows

package advertiser

import (
	"errors"
	"syscall"
)

// diskFull tells whether err came from a disk or a quota without room.
func diskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
