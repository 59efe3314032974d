package localgrpc

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
	if _, err := SocketOwner(t.Context(), socket); !errors.Is(err, ErrNoListener) {
		t.Errorf("no socket: %v", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{socket, "unix://" + socket} {
		process, err := SocketOwner(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if process.PID != os.Getpid() {
			t.Errorf("%s: process %d, want %d", name, process.PID, os.Getpid())
		}
		if is, err := process.Is(filepath.Base(os.Args[0])); err != nil || !is {
			t.Errorf("it is %s: %v", process.Name(), err)
		}
		if is, err := process.Is("containerd"); err != nil || is {
			t.Errorf("it is containerd: %v", err)
		}
		if err := process.Close(); err != nil {
			t.Error(err)
		}
	}
	abandon(t, listener.(*net.UnixListener))
	if _, err := SocketOwner(t.Context(), socket); !errors.Is(err, ErrNoListener) {
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
	p := &Process{PID: command.Process.Pid, handle: handle}
	defer p.Close()
	short, cancel := context.WithTimeout(t.Context(), 3*exitPollInterval)
	defer cancel()
	if err := p.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it runs: %v", err)
	}
	if err := p.Signal(unix.SIGTERM); err != nil {
		t.Error(err)
	}
	// Its parent, this process, has not waited for it yet.
	if err := p.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	_ = command.Wait() // Its status is the signal.
	if err := p.Signal(unix.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("it has ended: %v", err)
	}
}
