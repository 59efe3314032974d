//go:build !windows

package advertiser

import (
	"errors"
	"syscall"
)

// diskFull reports whether err is that of a full disk or an exceeded quota.
func diskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
