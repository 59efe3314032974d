//go:build e2e && windows

package bed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/containers/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/directx-nri/directx-nri/internal/localgrpc"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// Namespaces of containerd.
const (
	CRINamespace     = "k8s.io" // of the CRI plugin
	DefaultNamespace = "default"
)

// Ctr runs ctr.exe. The error has what it printed.
func (n *Node) Ctr(args ...string) (string, error) { return n.ctr(stepTimeout, args...) }

func (n *Node) ctr(limit time.Duration, args ...string) (string, error) {
	for deadline := time.Now().Add(limit); ; {
		out, err := n.run(limit, ctrExe, append([]string{"--address", n.Pipe()}, args...)...)
		// ctr 2 checks that the pipe exists, which fails while another process connects, and Wine
		// sometimes fails to load a library. ctr has sent no request then.
		if err == nil || time.Now().After(deadline) ||
			!strings.Contains(err.Error(), "cannot access socket") && !strings.Contains(err.Error(), "DLL initialization failed") {
			return out, err
		}
	}
}

// lostProcess reports whether err is that of a program that Wine could not start: sometimes, with several threads in
// the one that starts it, Wine 8 loses the new process's socket ("wine client error: sendmsg: Bad file descriptor"),
// and CreateProcess fails with ERROR_INTERNAL_ERROR. No program of the suite has started then.
func (n *Node) lostProcess(t testing.TB, err error) bool {
	t.Helper()
	lost := n.Doubled && err != nil && strings.Contains(err.Error(), "fork/exec ") && strings.Contains(err.Error(), "Internal error.")
	if lost {
		t.Logf("Wine lost a process: %v", err)
	}
	return lost
}

// Decode decodes JSON.
func Decode[T any](t testing.TB, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("decode %q: %v", text, err)
	}
	return v
}

// connect calls f with a connection to containerd and the context of a namespace.
func (n *Node) connect(t testing.TB, namespace string, f func(ctx context.Context, conn *grpc.ClientConn) error) error {
	t.Helper()
	conn, err := localgrpc.Dial(n.Pipe())
	testutil.NoError(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), "containerd-namespace", namespace), stepTimeout)
	defer cancel()
	return f(ctx, conn)
}

// runArgs returns the arguments of ctr that start a container of the node's image with flags.
func (n *Node) runArgs(id string, flags, command []string) []string {
	return slices.Concat([]string{"run", "--detach", "--null-io"}, flags, []string{n.imageName(), id}, command)
}

// Forever returns a command line that runs until it is killed. The double of the Host
// Compute Service has one; any other ends immediately (../doubles/vmcompute.c).
func (m *Machine) Forever() []string {
	if m.Doubled {
		return []string{"forever"}
	}
	return []string{"ping", "-t", "127.0.0.1"}
}

// RunImage starts a container of the node's image with ctr and flags, and leaves it running.
func (n *Node) RunImage(t testing.TB, id string, flags ...string) error {
	t.Helper()
	return n.RunCommand(t, id, flags, n.Forever())
}

// RunCommand is [Node.RunImage] with a command.
func (n *Node) RunCommand(t testing.TB, id string, flags, command []string) error {
	t.Helper()
	t.Cleanup(func() { n.remove(id) })
	args := n.runArgs(id, flags, command)
	_, err := n.Ctr(args...)
	for n.lostProcess(t, err) {
		n.remove(id)
		_, err = n.Ctr(args...)
	}
	return err
}

// MustRunImage is [Node.RunImage] for a container that has to start.
func (n *Node) MustRunImage(t testing.TB, id string, flags ...string) {
	t.Helper()
	if err := n.RunImage(t, id, flags...); err != nil {
		t.Fatalf("start %s: %v", id, err)
	}
}

// JSON returns v as JSON.
func JSON(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	testutil.NoError(t, err)
	return data
}

// Visible returns flags of ctr that request GPUs.
func Visible(request string) []string { return []string{"--env", "DIRECTX_VISIBLE_DEVICES=" + request} }

// remove removes what is left of a container, if anything.
func (n *Node) remove(id string) {
	_, _ = n.ctr(4*stepTimeout, "tasks", "rm", "--force", id)
	_, _ = n.ctr(4*stepTimeout, "containers", "rm", id)
}

// Delete kills and removes a running container. Nothing of it is left.
func (n *Node) Delete(t testing.TB, id string) {
	t.Helper()
	for _, args := range [][]string{{"tasks", "kill", "--signal", "9", id}, {"tasks", "rm", "--force", id}, {"containers", "rm", id}} {
		if _, err := n.Ctr(args...); err != nil && !strings.Contains(err.Error(), "exit code 137") {
			t.Errorf("ctr %s: %v", strings.Join(args, " "), err)
		}
	}
	n.MustLeaveNothing(t, id)
}

// Inside runs a command in a running container and returns its output.
func (n *Node) Inside(id string, command ...string) (string, error) {
	return n.Ctr(append([]string{"tasks", "exec", "--exec-id", "inside", id}, command...)...)
}

// Tasks returns the state of each task of a namespace by ID.
func (n *Node) Tasks(t testing.TB, namespace string) map[string]string {
	t.Helper()
	out, err := n.Ctr("--namespace", namespace, "tasks", "ls")
	if err != nil {
		t.Fatalf("list the tasks: %v", err)
	}
	states := map[string]string{}
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] != "TASK" {
			states[fields[0]] = fields[2]
		}
	}
	return states
}

// MustLeaveNothing waits until a container has left no process, bundle or compute system.
func (n *Node) MustLeaveNothing(t testing.TB, id string) {
	t.Helper()
	Eventually(t, "nothing is left of "+id, func() error {
		if left := n.Processes(id); len(left) > 0 {
			return fmt.Errorf("%d processes: %+v", len(left), left)
		}
		if bundles, _ := filepath.Glob(n.containerd + `\io.containerd.runtime.v2.task\*\` + id); len(bundles) > 0 {
			return errors.New("its bundle exists")
		}
		if _, err := os.Stat(`C:\hcs\` + id); err == nil {
			return errors.New("its compute system exists")
		}
		return nil
	})
}

// ShimCall is a call of the real shim, as recorded by the launcher.
type ShimCall struct {
	ID    string   `json:"id"`
	Args  []string `json:"args"`
	Stdin []byte   `json:"stdin"`
}

// ShimCalls returns the calls of the real shim for a container, in order.
func (n *Node) ShimCalls(t testing.TB, id string) []ShimCall {
	t.Helper()
	files, err := filepath.Glob(n.Path("launcher", "call-*.json")) // In the order of their times.
	testutil.NoError(t, err)
	var calls []ShimCall
	for _, file := range files {
		if call := Decode[ShimCall](t, string(ReadFile(t, file))); call.ID == id {
			calls = append(calls, call)
		}
	}
	return calls
}

// Config returns the config.json that the real shim was started with.
func (n *Node) Config(t testing.TB, id string) string {
	t.Helper()
	data := ReadFile(t, n.Path("launcher", "config-"+id+".json"))
	if data == nil {
		t.Fatalf("the real shim was not started for %s", id)
	}
	return string(data)
}

// MustBeUnchanged fails the test unless the real shim was started with the config.json that
// containerd wrote for a container: the bytes of the spec in its store.
func (n *Node) MustBeUnchanged(t testing.TB, namespace, id string) {
	t.Helper()
	var stored *containers.GetContainerResponse
	err := n.connect(t, namespace, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		stored, err = containers.NewContainersClient(conn).Get(ctx, &containers.GetContainerRequest{ID: id})
		return err
	})
	testutil.NoError(t, err)
	if got, want := n.Config(t, id), string(stored.GetContainer().GetSpec().GetValue()); got != want {
		t.Errorf("config.json of %s is\n%s\nand containerd wrote\n%s", id, got, want)
	}
}

// StartHanging starts a standalone container with ctr, which is killed when ctx ends, and
// returns when the launcher waits: "before" it runs runhcs, or "after". The start continues
// with release, at the latest when the test ends, and ended has ctr's error.
func (n *Node) StartHanging(ctx context.Context, t testing.TB, when, id, request string) (release func(), ended <-chan error) {
	t.Helper()
	testutil.NoError(t, os.MkdirAll(n.Path("launcher"), 0o700))
	order := n.File(t, `launcher\hang-`+when+"-"+id, "")
	release = func() { _ = os.Remove(order) }
	t.Cleanup(release)
	args := append([]string{"--address", n.Pipe()}, n.runArgs(id, Visible(request), n.Forever())...)
	result := make(chan error, 1)
	go func() { // Ends with ctr.
		_, _, err := n.output(n.Command(ctx, n.Path(ctrExe), args...))
		result <- err
	}()
	Eventually(t, "the start of "+id+" waits", func() error {
		_, err := os.Stat(n.Path("launcher", "hanging-"+id))
		return err
	})
	return release, result
}
