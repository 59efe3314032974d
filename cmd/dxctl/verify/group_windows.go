package verify

import "syscall"

// ownGroup keeps Ctrl-C from reaching a process.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}
