//go:build unix

package service

import (
	"context"
	"os/exec"
)

type managedService string

// Named returns the named service of systemd.
func Named(name string) Service { return managedService(name) }

func (s managedService) String() string { return "systemctl restart " + string(s) }

func (s managedService) Check(context.Context) error { return nil }

func (s managedService) Restart(ctx context.Context) error {
	return run(exec.CommandContext(ctx, "systemctl", "restart", "--", string(s)), s.String())
}

// RunningPrograms returns nothing: it is supported on Windows only.
func RunningPrograms(string) []string { return nil }

func shell(ctx context.Context, command string) *exec.Cmd {
	return exec.CommandContext(ctx, "/bin/sh", "-c", command)
}
