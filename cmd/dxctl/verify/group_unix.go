//go:build unix

package verify

import "syscall"

// ownGroup keeps Ctrl-C from reaching a process.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
