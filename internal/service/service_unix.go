//go:build unix

package service

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
)

// Named returns the named service of systemd.
func Named(name string) Service {
	return commandService{"systemctl restart " + name, func(ctx context.Context) *exec.Cmd {
		return exec.CommandContext(ctx, "systemctl", "restart", "--", name)
	}}
}

// RunningPrograms returns nothing: it is supported on Windows only.
func RunningPrograms(string) []string { return nil }

func shell(ctx context.Context, command string) *exec.Cmd {
	return exec.CommandContext(ctx, "/bin/sh", "-c", command)
}

// errWindowsOnly is the error of Install and Uninstall: the packages have units of systemd.
var errWindowsOnly = fmt.Errorf("services of Windows: %w; use the packages, or the units in deployments/systemd", errors.ErrUnsupported)

// Install is supported on Windows only.
func (Daemon) Install(context.Context) error { return errWindowsOnly }

// Uninstall is supported on Windows only.
func (Daemon) Uninstall(context.Context) (removed bool, err error) { return false, errWindowsOnly }

// Run reports that the process was not started by a service manager that needs answers.
func Run(string, Main) (status int, started bool) { return 0, false }
