//go:build e2e && linux

package bed

import (
	"net"
	"path/filepath"
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
	if err := copyFile(filepath.Join(n.built, restartExe), n.Linux(n.Path(restartExe))); err != nil {
		t.Fatal(err)
	}
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
	args := r.node.containerdArgs()
	if i < len(r.ways) && r.ways[i] != Well {
		args = r.node.containerdArgsWith(r.ways[i].file())
	}
	return r.node.start(args)
}

// file returns the name of the configuration file.
func (w Way) file() string {
	if w == Ending {
		return "ending.toml"
	}
	return "without-cri.toml"
}
