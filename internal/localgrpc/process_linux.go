package localgrpc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Process refers to a process of this machine. It does not refer to another process
// that gets the same ID later, on kernels with pidfds. Close it after use.
type Process struct {
	PID int
	fd  int // a pidfd, -1 if the kernel has none
}

// SocketOwner returns the process that listens on socket, a path or unix:// URL. The
// error matches [ErrNoListener] or [ErrHidden].
func SocketOwner(ctx context.Context, socket string) (*Process, error) {
	path, _ := parseAddress(socket)
	connection, err := new(net.Dialer).DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED):
		return nil, fmt.Errorf("find the process behind %s: %w: %w", socket, ErrNoListener, err)
	case err != nil:
		return nil, fmt.Errorf("find the process behind %s: %w", socket, err)
	}
	// The process cannot have ended while the connection is open.
	defer connection.Close()
	pid, err := credentials(connection.(*net.UnixConn))
	switch {
	case err != nil:
		return nil, fmt.Errorf("find the process behind %s: %w", socket, err)
	case pid == 0:
		return nil, fmt.Errorf("find the process behind %s: %w", socket, ErrHidden)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM):
		fd = -1 // Linux before 5.3, or a seccomp profile without the system call.
	case errors.Is(err, unix.ESRCH):
		return nil, fmt.Errorf("find the process behind %s: %w: %w", socket, ErrNoListener, ErrExited)
	case err != nil:
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	return &Process{PID: pid, fd: fd}, nil
}

// credentials returns the ID of the process at the other end of the connection, 0
// when it is in another PID namespace.
func credentials(connection *net.UnixConn) (int, error) {
	raw, err := connection.SyscallConn()
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

// Close releases the pidfd.
func (p *Process) Close() error {
	if p.fd < 0 {
		return nil
	}
	return unix.Close(p.fd)
}

func (p *Process) file(name string) string { return filepath.Join("/proc", strconv.Itoa(p.PID), name) }

// readText returns the content of a file without the final newline.
func readText(path string) (string, error) {
	text, err := os.ReadFile(path)
	return strings.TrimSuffix(string(text), "\n"), err
}

// Is reports whether the process runs a program of that name. Every process can read
// the name, and the path of the program only those that may trace the process.
func (p *Process) Is(program string) (bool, error) {
	name, err := readText(p.file("comm"))
	if err != nil {
		return false, err
	}
	if name == program {
		return true, nil
	}
	file, err := os.Readlink(p.file("exe"))
	return err == nil && filepath.Base(strings.TrimSuffix(file, " (deleted)")) == program, nil
}

// Name returns the kernel's name of the process.
func (p *Process) Name() string {
	name, err := readText(p.file("comm"))
	if err != nil {
		return "unknown"
	}
	return name
}

// Started returns when the process was started, to a hundredth of a second. The
// current wall clock is the reference.
func (p *Process) Started() (time.Time, error) {
	stat, err := readText(p.file("stat"))
	if err != nil {
		return time.Time{}, err
	}
	start, err := parseStart(stat)
	if err != nil {
		return time.Time{}, fmt.Errorf("read %s: %w", p.file("stat"), err)
	}
	var sinceBoot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &sinceBoot); err != nil {
		return time.Time{}, fmt.Errorf("read the time since boot: %w", err)
	}
	return time.Now().Add(start - time.Duration(sinceBoot.Nano())), nil
}

// Signal sends a signal. The error matches [ErrExited] when the process has ended.
func (p *Process) Signal(signal unix.Signal) error {
	var err error
	if p.fd >= 0 {
		err = unix.PidfdSendSignal(p.fd, signal, nil, 0)
	} else {
		err = unix.Kill(p.PID, signal)
	}
	if errors.Is(err, unix.ESRCH) {
		return ErrExited
	}
	return err
}

// exitPoll is the interval at which [Process.Wait] checks the process.
const exitPoll = 20 * time.Millisecond

// Wait returns nil when the process has ended, or ctx's error.
func (p *Process) Wait(ctx context.Context) error {
	for {
		exited, err := p.exited()
		if exited || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(exitPoll):
		}
	}
}

func (p *Process) exited() (bool, error) {
	if p.fd < 0 {
		return errors.Is(p.Signal(0), ErrExited), nil
	}
	// A pidfd is readable when the process has ended.
	// https://man7.org/linux/man-pages/man2/pidfd_open.2.html
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, 0)
	if errors.Is(err, unix.EINTR) {
		return false, nil
	}
	return n > 0, err
}
