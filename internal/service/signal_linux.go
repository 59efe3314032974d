package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
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
