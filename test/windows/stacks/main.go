//go:build windows

// The command stacks makes containerd and runhcs log the stacks of their goroutines. Each
// waits for an event with its process ID in the name.
package main

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "stacks: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return fmt.Errorf("CreateToolhelp32Snapshot: %w", err)
	}
	defer func() { _ = windows.CloseHandle(snapshot) }()
	entry := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}
	for err = windows.Process32First(snapshot, &entry); err == nil; err = windows.Process32Next(snapshot, &entry) {
		name, err := windows.UTF16PtrFromString(fmt.Sprintf(`Global\stackdump-%d`, entry.ProcessID))
		if err != nil {
			return err
		}
		event, err := windows.OpenEvent(windows.EVENT_MODIFY_STATE, false, name)
		if err != nil {
			continue // The program has none.
		}
		fmt.Printf("%s (%d) logs its stacks: %v\n", windows.UTF16ToString(entry.ExeFile[:]), entry.ProcessID, windows.SetEvent(event))
		_ = windows.CloseHandle(event)
	}
	return nil
}
