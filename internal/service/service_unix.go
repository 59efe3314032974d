//go:build unix

package service

import (
	"context"
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
