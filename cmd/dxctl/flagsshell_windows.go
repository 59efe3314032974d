package main

import (
	"os"
	"unsafe"

	"golang.org/x/sys/windows"

	"directx-nri/cmd/dxctl/quote"
)

// callingShell returns the shell that this program was called from.
func callingShell() quote.Shell { return shellOf(programOf(uint32(os.Getppid()))) }

// programOf returns the file's name of a process, "" when it is gone.
func programOf(process uint32) string {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return ""
	}
	defer func() { _ = windows.CloseHandle(snapshot) }()
	var entry windows.ProcessEntry32
	entry.Size = uint32(unsafe.Sizeof(entry))
	for err = windows.Process32First(snapshot, &entry); err == nil; err = windows.Process32Next(snapshot, &entry) {
		if entry.ProcessID == process {
			return windows.UTF16ToString(entry.ExeFile[:])
		}
	}
	return ""
}
