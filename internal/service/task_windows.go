package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/windows"
)

// RunTask registers and starts a task. An earlier one of the same name is replaced.
func RunTask(ctx context.Context, t Task) (err error) {
	definition, err := t.definition(windows.ComposeCommandLine(t.Args))
	if err != nil {
		return err
	}
	// Beside the program: no other user can write there.
	file := t.Program + ".xml"
	if err := os.WriteFile(file, definition, 0o600); err != nil {
		return fmt.Errorf("define the scheduled task %q: %w", t.Name, err)
	}
	defer func() { err = errors.Join(err, os.Remove(file)) }()
	if err := schtasks(ctx, "/Create", "/TN", t.Name, "/XML", file, "/F"); err != nil {
		return err
	}
	return schtasks(ctx, "/Run", "/TN", t.Name)
}

// DeleteTask deletes a task, if there is one. A process of it continues.
func DeleteTask(ctx context.Context, name string) error {
	system, err := windows.GetSystemDirectory()
	if err != nil {
		return err
	}
	// The definition of a task is a file. schtasks.exe reports a missing task in words only.
	if _, err := os.Lstat(filepath.Join(system, "Tasks", name)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return schtasks(ctx, "/Delete", "/TN", name, "/F")
}

func schtasks(ctx context.Context, args ...string) error {
	system, err := windows.GetSystemDirectory()
	if err != nil {
		return err
	}
	return run(exec.CommandContext(ctx, filepath.Join(system, "schtasks.exe"), args...), fmt.Sprintf("schtasks.exe %s", args[0]))
}

// Programs returns the paths of the running programs with a file name, without those that
// cannot be read. Any user can start a program of that name.
func Programs(name string) (paths []string) {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = windows.CloseHandle(snapshot) }()
	entry := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}
	for err = windows.Process32First(snapshot, &entry); err == nil; err = windows.Process32Next(snapshot, &entry) {
		if !strings.EqualFold(windows.UTF16ToString(entry.ExeFile[:]), name) {
			continue
		}
		process, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, entry.ProcessID)
		if err != nil {
			continue
		}
		var path [windows.MAX_LONG_PATH]uint16
		size := uint32(len(path))
		if windows.QueryFullProcessImageName(process, 0, &path[0], &size) == nil {
			paths = append(paths, windows.UTF16ToString(path[:size]))
		}
		_ = windows.CloseHandle(process)
	}
	return paths
}
