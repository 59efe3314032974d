// Package service restarts services of the operating system, such as containerd.
package service

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
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
func Command(command string) Service {
	return commandService{fmt.Sprintf("the command %q", command), func(ctx context.Context) *exec.Cmd { return shell(ctx, command) }}
}

type commandService struct {
	name    string
	command func(context.Context) *exec.Cmd
}

func (s commandService) String() string { return s.name }

func (s commandService) Check(context.Context) error { return nil }

// Restart runs the command. Its error has the last line of the output.
func (s commandService) Restart(ctx context.Context) error {
	command := s.command(ctx)
	command.WaitDelay = time.Second
	output, err := command.CombinedOutput()
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return nil // It may have started containerd itself, which keeps the output open and ignores SIGPIPE.
	}
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	if last := strings.TrimSpace(lines[len(lines)-1]); last != "" {
		return fmt.Errorf("restart by %s: %w: %s", s, err, last)
	}
	return fmt.Errorf("restart by %s: %w", s, err)
}

// signaledProcess is a process that listens on a socket and is restarted by its supervisor after a
// signal.
type signaledProcess struct{ socket, program string }

// BySignal returns the service of the process that listens on socket, which must run
// program. Restart sends SIGTERM, and its supervisor starts it again. If no process
// listens, the service is assumed to be starting. On Windows, its methods return an error.
func BySignal(socket, program string) Service { return signaledProcess{socket, program} }

func (s signaledProcess) String() string { return "a signal to " + s.program }

func (s signaledProcess) Check(ctx context.Context) error { return s.send(ctx, 0) }

func (s signaledProcess) Restart(ctx context.Context) error { return s.send(ctx, syscall.SIGTERM) }
