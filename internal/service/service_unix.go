//go:build unix

package service

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
)

type named string

// Named returns the named service of systemd.
func Named(name string, _ ...string) Service { return named(name) }

// Dependents returns none: systemd restarts them.
func Dependents(string) ([]string, error) { return nil, nil }

func (n named) String() string { return "systemctl restart " + string(n) }

func (n named) Check(context.Context) error { return nil }

func (n named) Restart(ctx context.Context) error {
	return run(exec.CommandContext(ctx, "systemctl", "restart", "--", string(n)), n.String())
}

// RunTask is supported on Windows only.
func RunTask(_ context.Context, t Task) error {
	return fmt.Errorf("scheduled task %q: %w", t.Name, errors.ErrUnsupported)
}

// DeleteTask returns nil: other systems have no such tasks.
func DeleteTask(context.Context, string) error { return nil }

// Programs returns nothing: it is supported on Windows only.
func Programs(string) []string { return nil }

func shell(ctx context.Context, command string) *exec.Cmd {
	return exec.CommandContext(ctx, "/bin/sh", "-c", command)
}
