package peer

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

// proc is where the kernel tells of processes.
const proc = "/proc"

// Process is a process of this machine, and no other one that gets its number
// later. Close it.
type Process struct {
	// PID is its number as seen from here.
	PID int

	fd int // a pidfd, -1 where the kernel has none
}

// Of returns the process that listens on socket, a path or unix:// URL. The error
// matches [ErrNobody] or [ErrUnseen].
func Of(ctx context.Context, socket string) (*Process, error) {
	path := strings.TrimPrefix(strings.TrimPrefix(socket, "unix:"), "//")
	connection, err := new(net.Dialer).DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED):
		return nil, fmt.Errorf("find the process behind %s: %w: %w", socket, ErrNobody, err)
	case err != nil:
		return nil, fmt.Errorf("find the process behind %s: %w", socket, err)
	}
	// Until the process is held, the connection shows that it is there.
	defer connection.Close()
	pid, err := credentials(connection.(*net.UnixConn))
	switch {
	case err != nil:
		return nil, fmt.Errorf("find the process behind %s: %w", socket, err)
	case pid == 0:
		return nil, fmt.Errorf("find the process behind %s: %w", socket, ErrUnseen)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM):
		fd = -1 // Linux before 5.3, or a seccomp profile that does not know it.
	case errors.Is(err, unix.ESRCH):
		return nil, fmt.Errorf("find the process behind %s: %w: %w", socket, ErrNobody, ErrGone)
	case err != nil:
		return nil, fmt.Errorf("hold process %d: %w", pid, err)
	}
	return &Process{PID: pid, fd: fd}, nil
}

// credentials returns the number of the process that listens at the other end of
// the connection, 0 when it is not in our PID namespace.
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

// Close lets go of the process.
func (p *Process) Close() error {
	if p.fd < 0 {
		return nil
	}
	return unix.Close(p.fd)
}

func (p *Process) file(name string) string { return filepath.Join(proc, strconv.Itoa(p.PID), name) }

// readText returns a small file without its last line end.
func readText(path string) (string, error) {
	text, err := os.ReadFile(path)
	return strings.TrimSuffix(string(text), "\n"), err
}

// Is tells whether the process runs a program of that name. A program's name is
// told to everybody, its file to those that may look into the process.
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

// Name returns what the kernel calls the process.
func (p *Process) Name() string {
	name, err := readText(p.file("comm"))
	if err != nil {
		return "unknown"
	}
	return name
}

// Started returns when the process was started, by today's clock, to a hundredth of
// a second.
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
		return time.Time{}, fmt.Errorf("ask how long the machine runs: %w", err)
	}
	return time.Now().Add(start - time.Duration(sinceBoot.Nano())), nil
}

// Signal sends a signal. The error matches [ErrGone] when the process has ended.
func (p *Process) Signal(signal unix.Signal) error {
	var err error
	if p.fd >= 0 {
		err = unix.PidfdSendSignal(p.fd, signal, nil, 0)
	} else {
		err = unix.Kill(p.PID, signal)
	}
	if errors.Is(err, unix.ESRCH) {
		return ErrGone
	}
	return err
}

// poll is how often it is looked whether a process has ended.
const poll = 20 * time.Millisecond

// Wait returns nil when the process has ended, or ctx's error.
func (p *Process) Wait(ctx context.Context) error {
	for {
		over, err := p.over()
		if over || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(poll):
		}
	}
}

func (p *Process) over() (bool, error) {
	if p.fd < 0 {
		return errors.Is(p.Signal(0), ErrGone), nil
	}
	// A pidfd can be read when the process has ended.
	// https://man7.org/linux/man-pages/man2/pidfd_open.2.html
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, 0)
	if errors.Is(err, unix.EINTR) {
		return false, nil
	}
	return n > 0, err
}
