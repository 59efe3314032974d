//go:build unix

package main

import "syscall"

// ownGroup keeps Ctrl-C from reaching a process.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
