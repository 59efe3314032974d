package service

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"golang.org/x/sys/unix"
)

func TestSocketOwner(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	if _, err := socketOwner(t.Context(), socket); !errors.Is(err, errNoListener) {
		t.Errorf("no socket: %v", err)
	}
	listener, err := net.Listen("unix", socket)
	testutil.NoError(t, err)
	for _, name := range []string{socket, "unix://" + socket} {
		process, err := socketOwner(t.Context(), name)
		testutil.NoError(t, err)
		if process.Pid != os.Getpid() {
			t.Errorf("%s: process %d, want %d", name, process.Pid, os.Getpid())
		}
		if is, runs, err := runsProgram(process.Pid, filepath.Base(os.Args[0])); err != nil || !runs {
			t.Errorf("it is %s: %v", is, err)
		}
		if is, runs, err := runsProgram(process.Pid, "containerd"); err != nil || runs {
			t.Errorf("%s is containerd: %v", is, err)
		}
		testutil.NoError(t, process.Release())
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	testutil.NoError(t, listener.Close())
	// A process that another test starts at this moment can have the listener until it runs its program.
	testutil.Eventually(t, "no process behind a socket that was left", func() bool {
		_, err := socketOwner(t.Context(), socket)
		return errors.Is(err, errNoListener)
	})
}

func TestWaitAndSignal(t *testing.T) {
	t.Parallel()
	command := exec.Command("sleep", "1000")
	testutil.NoError(t, command.Start())
	p, err := os.FindProcess(command.Process.Pid)
	testutil.NoError(t, err)
	defer p.Release()
	short, cancel := context.WithTimeout(t.Context(), 3*exitPollInterval)
	defer cancel()
	if err := waitForExit(short, p); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it runs: %v", err)
	}
	testutil.NoError(t, p.Signal(unix.SIGTERM))
	// Its parent, this process, has not waited for it yet.
	testutil.NoError(t, waitForExit(t.Context(), p))
	_ = command.Wait() // Its status is the signal.
	if err := p.Signal(unix.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("it has ended: %v", err)
	}
}
