//go:build unix

package service

import (
	"context"
	"os/exec"
)

type named string

// Named returns the named service of systemd.
func Named(name string) Service { return named(name) }

func (n named) String() string { return "systemctl restart " + string(n) }

func (n named) Check(context.Context) error { return nil }

func (n named) Restart(ctx context.Context) error {
	return run(exec.CommandContext(ctx, "systemctl", "restart", "--", string(n)), n.String())
}

// Programs returns nothing: it is supported on Windows only.
func Programs(string) []string { return nil }

func shell(ctx context.Context, command string) *exec.Cmd {
	return exec.CommandContext(ctx, "/bin/sh", "-c", command)
}
