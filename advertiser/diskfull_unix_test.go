//go:build !windows

package advertiser

import "syscall"

const errDiskFull = syscall.ENOSPC
