package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/directx-nri/directx-nri/internal/localgrpc"
)

// signaled is a process that listens on a socket and has a supervisor.
type signaled struct{ socket, program string }

// BySignal returns the service of the process that listens on socket, which must be
// program. Restart sends SIGTERM, and its supervisor starts it again. If no process
// listens, it is assumed to be starting.
func BySignal(socket, program string) Service { return signaled{socket, program} }

func (s signaled) String() string { return "a signal to " + s.program }

// find returns the process, or nil if there is none.
func (s signaled) find(ctx context.Context) (*localgrpc.Process, error) {
	process, err := localgrpc.SocketOwner(ctx, s.socket)
	switch {
	case errors.Is(err, localgrpc.ErrNoListener):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("restart by %s: %w", s, err)
	}
	is, err := process.Is(s.program)
	switch {
	case err == nil && is:
		return process, nil
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH):
		err = nil // It has exited.
	case err != nil:
		err = fmt.Errorf("restart by %s: identify process %d: %w", s, process.PID, err)
	default:
		err = fmt.Errorf("restart by %s: process %d, which listens on %s, is %s and not %s; restart %[5]s another way",
			s, process.PID, s.socket, process.Name(), s.program)
	}
	return nil, errors.Join(err, process.Close())
}

func (s signaled) Check(ctx context.Context) error {
	process, err := s.find(ctx)
	if err != nil || process == nil {
		return err
	}
	err = process.Signal(0)
	if errors.Is(err, localgrpc.ErrExited) {
		err = nil
	}
	if err != nil {
		err = s.notSent(process.PID, err)
	}
	return errors.Join(err, process.Close())
}

func (s signaled) Restart(ctx context.Context) (err error) {
	process, err := s.find(ctx)
	if err != nil || process == nil {
		return err
	}
	defer func() { err = errors.Join(err, process.Close()) }()
	if err := process.Signal(unix.SIGTERM); errors.Is(err, localgrpc.ErrExited) {
		return nil
	} else if err != nil {
		return s.notSent(process.PID, err)
	}
	if err := process.Wait(ctx); err != nil {
		return fmt.Errorf("restart by %s: process %d got a signal and has not exited: %w", s, process.PID, err)
	}
	return nil
}

// notSent returns the error of a signal that could not be sent.
func (s signaled) notSent(pid int, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("restart by %s: process %d: %w; run as root, and in a pod set appArmorProfile: {type: Unconfined} for this container", s, pid, err)
	}
	return fmt.Errorf("restart by %s: process %d: %w", s, pid, err)
}
