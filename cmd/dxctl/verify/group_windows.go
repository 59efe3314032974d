package verify

import "syscall"

// ownGroup starts a process in its own group, so that Ctrl-C does not end it.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}
