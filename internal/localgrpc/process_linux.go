package localgrpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// ErrNoListener is returned by [SocketOwner] when no process listens on the socket.
var ErrNoListener = errors.New("no process listens")

// Process refers to a process of this machine. On kernels with pidfds, it does not refer
// to another process that has the same ID later. Close it after use.
type Process struct {
	PID    int
	handle *os.Process
}

// SocketOwner returns the process that listens on socket, a path or unix:// URL. The
// error matches [ErrNoListener] if there is none.
func SocketOwner(ctx context.Context, socket string) (_ *Process, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("find the process behind %s: %w", socket, err)
		}
	}()
	path, _ := ParseAddress(socket)
	connection, err := new(net.Dialer).DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || isRefused(err):
		return nil, fmt.Errorf("%w: %w", ErrNoListener, err)
	case err != nil:
		return nil, err
	}
	// The process cannot have ended while the connection is open.
	defer connection.Close()
	pid, err := PeerPID(connection)
	if err == nil && pid == 0 {
		err = errors.New("its process is in another PID namespace; in a pod set hostPID: true")
	}
	if err != nil {
		return nil, err
	}
	handle, err := os.FindProcess(pid)
	if err != nil {
		return nil, err
	}
	return &Process{PID: pid, handle: handle}, nil
}

// PeerPID returns the ID of the process that listens on the Unix socket of a connection, 0 if the
// process is in another PID namespace.
func PeerPID(connection net.Conn) (int, error) {
	raw, err := connection.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var optionErr error
	err = raw.Control(func(fd uintptr) { peer, optionErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, optionErr); err != nil {
		return 0, err
	}
	return int(peer.Pid), nil
}

// Close releases the reference to the process.
func (p *Process) Close() error { return p.handle.Release() }

// Is reports whether the process runs a program with this name. Any process can read the
// kernel's name of the process. Only processes that may trace it can read the program's path.
func (p *Process) Is(program string) (bool, error) {
	proc, err := procfs.NewProc(p.PID)
	if err != nil {
		return false, err
	}
	name, err := proc.Comm()
	if err != nil || name == program {
		return err == nil, err
	}
	file, err := proc.Executable()
	return err == nil && filepath.Base(strings.TrimSuffix(file, " (deleted)")) == program, nil
}

// Name returns the kernel's name of the process.
func (p *Process) Name() string {
	proc, err := procfs.NewProc(p.PID)
	if err != nil {
		return "unknown"
	}
	name, _ := proc.Comm()
	return cmp.Or(name, "unknown")
}

// Signal sends a signal. The error matches [os.ErrProcessDone] if the process has ended.
func (p *Process) Signal(signal unix.Signal) error { return p.handle.Signal(signal) }

// exitPollInterval is the interval at which [Process.Wait] checks the process.
const exitPollInterval = 20 * time.Millisecond

// Wait returns nil when the process has ended, or ctx's error.
func (p *Process) Wait(ctx context.Context) error {
	for !p.exited() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(exitPollInterval):
		}
	}
	return nil
}

func (p *Process) exited() (exited bool) {
	// A pidfd is readable when the process has ended, also before its parent waits for it.
	// https://man7.org/linux/man-pages/man2/pidfd_open.2.html
	err := p.handle.WithHandle(func(fd uintptr) {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		exited = n > 0
	})
	return exited || err != nil && errors.Is(p.Signal(0), os.ErrProcessDone)
}
