package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

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
