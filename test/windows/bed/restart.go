//go:build e2e && windows

package bed

import (
	"context"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
)

// Way is the course of a restart of containerd: the configuration file that it is
// started with, empty for its own.
type Way string

const (
	// Well is a restart that succeeds.
	Well Way = ""
	// Ending is a restart whose containerd.exe ends.
	Ending Way = "version = nothing"
	// WithoutCRI is a restart whose containerd.exe has no CRI plugin.
	WithoutCRI Way = "version = 2\ndisabled_plugins = ['io.containerd.grpc.v1.cri']\n"
)

// Restarter restarts a node's containerd when a command requests it.
type Restarter struct {
	// Command is a command line of the node.
	Command string

	node  *Node
	ways  []Way
	count atomic.Int32
}

// NewRestarter returns a restarter for the node until the test ends. The restarts take
// the courses of ways in order, and succeed after them.
func (n *Node) NewRestarter(t testing.TB, ways ...Way) *Restarter {
	t.Helper()
	for _, way := range ways {
		if way != Well {
			n.File(t, way.file(), string(way))
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Restarter{Command: `"` + n.Path(restartExe) + `" ` + listener.Addr().String(), node: n, ways: ways}
	done := make(chan struct{})
	go func() { // Ends with the listener.
		defer close(done)
		r.serve(listener)
	}()
	t.Cleanup(func() { _ = listener.Close(); <-done })
	return r
}

// Count returns the number of restarts.
func (r *Restarter) Count() int { return int(r.count.Load()) }

func (r *Restarter) serve(listener net.Listener) {
	for {
		command, err := listener.Accept()
		if err != nil {
			return
		}
		answer := "restarted"
		if err := r.restart(); err != nil {
			answer = err.Error()
		}
		_, _ = command.Write([]byte(answer)) // The command fails without it.
		_ = command.Close()
	}
}

func (r *Restarter) restart() error {
	i := int(r.count.Add(1)) - 1
	r.node.Kill()
	config := ""
	if i < len(r.ways) {
		config = r.ways[i].file()
	}
	return r.node.start(r.node.containerdArgs(config))
}

// file returns the name of the configuration file.
func (w Way) file() string {
	return map[Way]string{Ending: "ending.toml", WithoutCRI: "without-cri.toml"}[w]
}

// Service is a service of Wine's that runs a node's containerd.exe as nssm does.
type Service struct {
	Name string
	node *Node
}

// NewService makes the node's containerd a service until the test ends.
func (n *Node) NewService(t testing.TB) *Service {
	t.Helper()
	n.Kill()
	s := &Service{Name: n.Name("containerd"), node: n}
	line := strings.Join(append([]string{n.Path(restartExe), "service", n.Path(containerdExe)}, n.containerdArgs("")...), " ")
	s.sc(t, "create", s.Name, "binPath=", line)
	t.Cleanup(func() {
		s.sc(t, "stop", s.Name)
		s.sc(t, "delete", s.Name)
		n.Start(t)
	})
	s.sc(t, "start", s.Name)
	return s
}

func (s *Service) sc(t testing.TB, args ...string) {
	t.Helper()
	if status, stdout, stderr := s.node.Finish(t, s.node.Command(context.Background(), "sc.exe", args...)); status != 0 {
		t.Fatalf("sc.exe %q: exit status %d\n%s%s", args, status, stdout, stderr)
	}
}

// RunTask waits for the scheduled task of dxctl, which Wine registers and does not run,
// and runs its program.
func (s *Service) RunTask(t testing.TB) (status int, log string) {
	t.Helper()
	n := s.node
	Eventually(t, "the task is registered", func() error {
		_, err := os.Stat(`C:\windows\system32\tasks\directx-nri restart containerd`)
		return err
	})
	status, stdout, stderr := n.Finish(t, n.Command(context.Background(), n.StateDir+`\restart-task.exe`, "runtime", "finish-restart",
		"--state-dir", n.StateDir, "--config", n.toml, "--cri-socket", n.Pipe(), "--service", s.Name, "--restart-timeout", "2m", "--restart"))
	return status, string(ReadFile(t, n.StateDir+`\restart-task.log`)) + stdout + stderr
}
