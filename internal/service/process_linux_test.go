package service

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSocketOwner(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	if _, err := socketOwner(t.Context(), socket); !errors.Is(err, errNoListener) {
		t.Errorf("no socket: %v", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{socket, "unix://" + socket} {
		process, err := socketOwner(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if process.pid != os.Getpid() {
			t.Errorf("%s: process %d, want %d", name, process.pid, os.Getpid())
		}
		if is, err := process.is(filepath.Base(os.Args[0])); err != nil || !is {
			t.Errorf("it is %s: %v", process.name(), err)
		}
		if is, err := process.is("containerd"); err != nil || is {
			t.Errorf("it is containerd: %v", err)
		}
		if err := process.close(); err != nil {
			t.Error(err)
		}
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := socketOwner(t.Context(), socket); !errors.Is(err, errNoListener) {
		t.Errorf("a socket that was left: %v", err)
	}
}

func TestWaitAndSignal(t *testing.T) {
	t.Parallel()
	command := exec.Command("sleep", "1000")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	handle, err := os.FindProcess(command.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{pid: command.Process.Pid, handle: handle}
	defer p.close()
	short, cancel := context.WithTimeout(t.Context(), 3*exitPollInterval)
	defer cancel()
	if err := p.wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it runs: %v", err)
	}
	if err := p.signal(unix.SIGTERM); err != nil {
		t.Error(err)
	}
	// Its parent, this process, has not waited for it yet.
	if err := p.wait(t.Context()); err != nil {
		t.Error(err)
	}
	_ = command.Wait() // Its status is the signal.
	if err := p.signal(unix.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("it has ended: %v", err)
	}
}
