package verify

import "syscall"

// newProcessGroup starts a process in a new group, so that Ctrl-C does not end it.
func newProcessGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}
