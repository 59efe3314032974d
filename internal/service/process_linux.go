package service

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

	"github.com/directx-nri/directx-nri/internal/localgrpc"
)

// errNoListener is returned by [socketOwner] when no process listens on the socket.
var errNoListener = errors.New("no process listens")

// process refers to a process of this machine. On kernels with pidfds, it does not refer
// to another process that has the same ID later. close it after use.
type process struct {
	pid    int
	handle *os.Process
}

// socketOwner returns the process that listens on socket, a path or unix:// URL. The
// error matches [errNoListener] if there is none.
func socketOwner(ctx context.Context, socket string) (_ *process, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("find the process behind %s: %w", socket, err)
		}
	}()
	path, _ := localgrpc.ParseAddress(socket)
	connection, err := new(net.Dialer).DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED):
		return nil, fmt.Errorf("%w: %w", errNoListener, err)
	case err != nil:
		return nil, err
	}
	// The process cannot have ended while the connection is open.
	defer connection.Close()
	pid, err := localgrpc.PeerPID(connection)
	if err != nil {
		return nil, err
	}
	if pid == 0 {
		return nil, errors.New("its process is in another PID namespace; in a pod set hostPID: true")
	}
	handle, err := os.FindProcess(pid)
	if err != nil {
		return nil, err
	}
	return &process{pid: pid, handle: handle}, nil
}

// close releases the reference to the process.
func (p *process) close() error { return p.handle.Release() }

// is reports whether the process runs a program with this name. Any process can read the
// kernel's name of the process. Only processes that may trace it can read the program's path.
func (p *process) is(program string) (bool, error) {
	proc, err := procfs.NewProc(p.pid)
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

// name returns the kernel's name of the process.
func (p *process) name() string {
	proc, err := procfs.NewProc(p.pid)
	if err != nil {
		return "unknown"
	}
	name, _ := proc.Comm()
	return cmp.Or(name, "unknown")
}

// signal sends a signal. The error matches [os.ErrProcessDone] if the process has ended.
func (p *process) signal(signal unix.Signal) error { return p.handle.Signal(signal) }

// exitPollInterval is the interval at which [process.wait] checks the process.
const exitPollInterval = 20 * time.Millisecond

// wait returns nil when the process has ended, or ctx's error.
func (p *process) wait(ctx context.Context) error {
	for !p.exited() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(exitPollInterval):
		}
	}
	return nil
}

func (p *process) exited() (exited bool) {
	// A pidfd is readable when the process has ended, also before its parent waits for it.
	// https://man7.org/linux/man-pages/man2/pidfd_open.2.html
	err := p.handle.WithHandle(func(fd uintptr) {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		exited = n > 0
	})
	return exited || err != nil && errors.Is(p.signal(0), os.ErrProcessDone)
}
