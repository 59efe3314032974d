//go:build unix

package verify

import "syscall"

// newProcessGroup starts a process in a new group, so that Ctrl-C does not end it.
func newProcessGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
