package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// socketVariable is the environment variable that makes this program a daemon that
// listens on the socket that it names, until a signal arrives.
const socketVariable = "DIRECTX_NRI_TEST_SOCKET"

func TestMain(m *testing.M) {
	socket := os.Getenv(socketVariable)
	if socket == "" {
		m.Run()
		return
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	if _, err := net.Listen("unix", socket); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	if strings.HasSuffix(os.Args[0], "-deaf") {
		<-(chan int)(nil)
	}
	<-signals
}

// daemon starts a daemon of that name, and returns its socket and a function that
// waits for its end.
func daemon(t *testing.T, name string) (socket string, end func() error, process *os.Process) {
	t.Helper()
	self, err := os.Executable()
	testutil.NoError(t, err)
	dir := t.TempDir()
	socket = filepath.Join(dir, "s")
	program := filepath.Join(dir, name)
	testutil.NoError(t, os.Symlink(self, program))
	command := exec.Command(program)
	command.Env = append(os.Environ(), socketVariable+"="+socket)
	command.Stderr = os.Stderr
	testutil.NoError(t, command.Start())
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	t.Cleanup(func() { _ = command.Process.Kill() })
	testutil.Eventually(t, "the daemon listens", func() bool {
		connection, err := net.Dial("unix", socket)
		if err == nil {
			connection.Close()
		}
		return err == nil
	})
	return socket, func() error { return <-ended }, command.Process
}

func TestBySignalEndsTheProcess(t *testing.T) {
	t.Parallel()
	socket, end, _ := daemon(t, "containerd")
	testutil.NoError(t, BySignal(socket, "containerd").Check(t.Context()))
	testutil.NoError(t, BySignal(socket, "containerd").Restart(t.Context()))
	// It has ended with status 0, and before Restart returned.
	testutil.NoError(t, end())
	// Without a listener: its supervisor would start it now.
	testutil.NoError(t, BySignal(socket, "containerd").Restart(t.Context()))
	testutil.NoError(t, BySignal(socket, "containerd").Check(t.Context()))
}

func TestBySignalLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	socket, _, process := daemon(t, "proxy")
	const want = "runs proxy instead of containerd; restart containerd another way"
	testutil.CheckError(t, "check", BySignal(socket, "containerd").Check(t.Context()), want)
	testutil.CheckError(t, "restart", BySignal(socket, "containerd").Restart(t.Context()), want)
	testutil.NoError(t, process.Signal(syscall.Signal(0))) // It has not ended.
}

func TestBySignalReportsHangingProcess(t *testing.T) {
	t.Parallel()
	socket, _, _ := daemon(t, "containerd-deaf")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err := BySignal(socket, "containerd-deaf").Restart(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "got a signal and has not exited") {
		t.Errorf("error %v", err)
	}
}

func TestUnitOf(t *testing.T) {
	t.Parallel()
	for cgroups, want := range map[string]string{
		"0::/system.slice/k3s.service\n":                                          "k3s.service",
		"4:cpu:/\n1:name=systemd:/system.slice/containerd.service/x\n0::/\n":      "containerd.service",
		"0::/user.slice/user-1000.slice/user@1000.service/app.slice/it.service\n": "",
		"": "",
	} {
		if got := unitOf(cgroups); got != want {
			t.Errorf("%q: %q, want %q", cgroups, got, want)
		}
	}
}
