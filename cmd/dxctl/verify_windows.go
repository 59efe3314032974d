package main

import "syscall"

// newProcessGroup returns the attributes of a process in a new group, which Ctrl-C does not end.
func newProcessGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}
