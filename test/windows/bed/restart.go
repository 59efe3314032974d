//go:build e2e && windows

package bed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/windows/svc"
)

// Courses of a restart of containerd: the configuration that it is started with.
const (
	// Well is a restart with its own configuration, which succeeds.
	Well = ""
	// Ending is a restart whose containerd.exe ends.
	Ending = "version = nothing"
	// WithoutCRI is a restart whose containerd.exe has no CRI plugin.
	WithoutCRI = "version = 2\ndisabled_plugins = ['io.containerd.grpc.v1.cri']\n"
)

// Restarter restarts a node's containerd, which is a child of the suite, when a command
// requests it.
type Restarter struct {
	// Command is a command line of the node.
	Command string

	node    *Node
	courses []string
	count   atomic.Int32
}

// restartCommand is the argument with which this program requests a restart of a URL.
const restartCommand = "restart"

// NewRestarter returns a restarter for the node until the test ends. The restarts take
// the courses in order, and succeed after them.
func (n *Node) NewRestarter(t testing.TB, courses ...string) *Restarter {
	t.Helper()
	r := &Restarter{node: n, courses: courses}
	for i, course := range courses {
		n.File(t, courseFile(i), course)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := r.restart(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	t.Cleanup(server.Close)
	r.Command = fmt.Sprintf(`"%s" %s %s`, self(t), restartCommand, server.URL)
	return r
}

// courseFile returns the name of the configuration file of the i-th restart.
func courseFile(i int) string { return fmt.Sprintf("restart-%d.toml", i) }

// Count returns the number of restarts.
func (r *Restarter) Count() int { return int(r.count.Load()) }

func (r *Restarter) restart() error {
	i := int(r.count.Add(1)) - 1
	r.node.Kill()
	config := ""
	if i < len(r.courses) && r.courses[i] != Well {
		config = courseFile(i)
	}
	return r.node.start(r.node.containerdArgs(config))
}

// requestRestart requests the restart of a restarter's URL.
func requestRestart(args []string) error {
	response, err := http.Get(args[0])
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, err := io.ReadAll(response.Body)
		return errors.Join(errors.New(string(text)), err)
	}
	return nil
}

// NewService makes the node's containerd a service of Wine's, which runs containerd.exe as nssm
// does, until the test ends. It returns the service's name.
func (n *Node) NewService(t testing.TB) (name string) {
	t.Helper()
	n.Kill()
	name = n.Name("containerd")
	sc := func(args ...string) {
		t.Helper()
		n.Exec(t, 0, n.Command(context.Background(), "sc.exe", args...))
	}
	line := strings.Join(append([]string{self(t), serviceCommand, n.Path(containerdExe)}, n.containerdArgs("")...), " ")
	sc("create", name, "binPath=", line)
	t.Cleanup(func() {
		sc("stop", name)
		sc("delete", name)
		n.Start(t)
	})
	sc("start", name)
	return name
}

// serviceCommand is the argument with which this program is a service that runs a program
// as its child, as nssm does.
const serviceCommand = "service"

// service is that of a program with its arguments.
type service struct{ command []string }

func (s service) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (bool, uint32) {
	program := exec.Command(s.command[0], s.command[1:]...)
	if err := program.Start(); err != nil {
		return false, 1
	}
	status <- svc.Status{State: svc.Running, Accepts: svc.AcceptStop}
	for request := range requests {
		if request.Cmd == svc.Stop {
			status <- svc.Status{State: svc.StopPending}
			_ = program.Process.Kill() // An error means that it has ended.
			_ = program.Wait()
			return false, 0
		}
		status <- request.CurrentStatus
	}
	return false, 0
}
