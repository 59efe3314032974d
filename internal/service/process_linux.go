package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/directx-nri/directx-nri/internal/localgrpc"
)

// send sends a signal to the process, if there is one. After SIGTERM, it waits until the process has
// exited.
func (s signaledProcess) send(ctx context.Context, signal unix.Signal) (err error) {
	process, err := socketOwner(ctx, s.socket)
	if errors.Is(err, errNoListener) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("restart by %s: %w", s, err)
	}
	defer func() { err = errors.Join(err, process.Release()) }()
	err = s.sendTo(ctx, process, signal)
	switch {
	case err == nil || errors.Is(err, os.ErrProcessDone) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH):
		return nil // It has exited.
	case errors.Is(err, fs.ErrPermission):
		err = fmt.Errorf("%w; run as root, and in a pod set appArmorProfile: {type: Unconfined} for this container", err)
	}
	return fmt.Errorf("restart by %s: process %d: %w", s, process.Pid, err)
}

func (s signaledProcess) sendTo(ctx context.Context, process *os.Process, signal unix.Signal) error {
	name, runs, err := runsProgram(process.Pid, s.program)
	if err != nil {
		return err
	}
	if !runs {
		return fmt.Errorf("it listens on %s, but runs %s instead of %s; restart %[3]s another way", s.socket, name, s.program)
	}
	if err := process.Signal(signal); err != nil || signal != unix.SIGTERM {
		return err
	}
	if err := waitForExit(ctx, process); err != nil {
		return fmt.Errorf("it got a signal and has not exited: %w", err)
	}
	return nil
}

var errNoListener = errors.New("no process listens")

// socketOwner returns the process that listens on socket, a path or unix:// URL. The caller releases
// it. On kernels with pidfds, it does not refer to another process that has the same ID later. The
// error matches [errNoListener] if there is none.
func socketOwner(ctx context.Context, socket string) (*os.Process, error) {
	pid, err := localgrpc.ServerPID(ctx, socket)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED):
		return nil, fmt.Errorf("%w: %w", errNoListener, err)
	case err != nil:
		return nil, err
	case pid == 0:
		return nil, fmt.Errorf("find the process behind %s: its process is in another PID namespace; in a pod set hostPID: true", socket)
	}
	return os.FindProcess(pid)
}

// runsProgram returns the kernel's name of a process, and reports whether it runs a program with
// this name. Any process can read the kernel's name. Only processes that may trace it can read the
// program's path.
func runsProgram(pid int, program string) (name string, runs bool, err error) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	comm, err := os.ReadFile(dir + "comm")
	if err != nil {
		return "", false, err
	}
	name = strings.TrimSpace(string(comm))
	file, _ := os.Readlink(dir + "exe")
	return name, name == program || filepath.Base(strings.TrimSuffix(file, " (deleted)")) == program, nil
}

// exitPollInterval is the interval at which [waitForExit] checks the process.
const exitPollInterval = 20 * time.Millisecond

// waitForExit returns nil when the process has ended, or ctx's error.
func waitForExit(ctx context.Context, p *os.Process) error {
	for !hasExited(p) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(exitPollInterval):
		}
	}
	return nil
}

func hasExited(p *os.Process) (exited bool) {
	// A pidfd is readable when the process has ended, also before its parent waits for it.
	// https://man7.org/linux/man-pages/man2/pidfd_open.2.html
	err := p.WithHandle(func(fd uintptr) {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		exited = n > 0
	})
	return exited || err != nil && errors.Is(p.Signal(unix.Signal(0)), os.ErrProcessDone)
}
