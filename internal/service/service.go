// Package service restarts services of the operating system, such as containerd, and runs the
// daemons of directx-nri as Windows services.
package service

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// Service can be restarted.
type Service interface {
	// Check returns an error if Restart is known to fail.
	Check(ctx context.Context) error
	// Restart stops and starts the service. It does not wait until the service is ready.
	Restart(ctx context.Context) error
	// String describes how the service is restarted.
	String() string
}

// Command returns a service that is restarted by a shell command. It is for other init systems.
func Command(command string) Service { return shellCommand(command) }

type shellCommand string

func (c shellCommand) String() string { return fmt.Sprintf("the command %q", string(c)) }

func (c shellCommand) Check(context.Context) error { return nil }

func (c shellCommand) Restart(ctx context.Context) error {
	return run(shell(ctx, string(c)), c.String())
}

// run runs a command. Its error has the last line of the output.
func run(command *exec.Cmd, what string) error {
	command.WaitDelay = time.Second
	output, err := command.CombinedOutput()
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return nil // It may have started containerd itself, which keeps the output open and ignores SIGPIPE.
	}
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	if last := strings.TrimSpace(lines[len(lines)-1]); last != "" {
		return fmt.Errorf("restart by %s: %w: %s", what, err, last)
	}
	return fmt.Errorf("restart by %s: %w", what, err)
}
