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

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

const (
	// CRINamespace is that of the CRI plugin.
	CRINamespace     = "k8s.io"
	defaultNamespace = "default"
)

// Ctr runs ctr.exe. The error has what it printed.
func (n *Node) Ctr(args ...string) (string, error) { return n.ctr(stepTimeout, args...) }

func (n *Node) ctr(limit time.Duration, args ...string) (string, error) {
	for deadline := time.Now().Add(limit); ; {
		out, err := n.run(limit, nil, ctrExe, append([]string{"--address", n.Pipe()}, args...)...)
		// ctr 2 checks that the pipe exists, which fails while another process connects. It
		// has sent no request yet.
		if err == nil || !strings.Contains(err.Error(), "cannot access socket") || time.Now().After(deadline) {
			return out, err
		}
	}
}

// Container is a container of the containerd client.
type Container struct {
	ID   string `json:"id"`
	Spec string `json:"spec"` // path
	// Runtime is the runtime's name, and Path its program if the name does not select it.
	Runtime string `json:"runtime"`
	Path    string `json:"runtimePath,omitempty"`
	// Options sends the runtime options of runhcs, as the CRI plugin does.
	Options bool `json:"runhcsOptions,omitempty"`
	// Sandbox is the ID of its pod's sandbox, or its own if it is one. See [Node.sandbox].
	Sandbox string `json:"sandbox,omitempty"`
	// Raw uses the spec as it is, even if it is not JSON.
	Raw bool `json:"raw,omitempty"`
}

// Client starts containers with the containerd client, concurrently, and leaves them
// running. It returns the errors.
func (n *Node) Client(t testing.TB, namespace string, containers ...Container) []error {
	t.Helper()
	var ids []string
	for _, c := range containers {
		ids = append(ids, c.ID)
	}
	t.Cleanup(func() { n.remove(namespace, ids...) })
	input := JSON(t, map[string]any{"address": n.Pipe(), "namespace": namespace, "containers": containers})
	out, err := n.run(4*stepTimeout, input, clientExe, "run")
	if err != nil {
		t.Fatalf("start containers with the client: %v", err)
	}
	answers := decodeLines[struct{ Error string }](t, out)
	if len(answers) != len(containers) {
		t.Fatalf("the client answered for %d containers, want %d", len(answers), len(containers))
	}
	errs := make([]error, len(answers))
	for i, a := range answers {
		if a.Error != "" {
			errs[i] = errors.New(a.Error)
		}
		if n.lostProcess(t, errs[i]) {
			n.remove(namespace, ids[i])
			errs[i] = n.Client(t, namespace, containers[i])[0]
		}
	}
	return errs
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

// decodeLines decodes lines of JSON.
func decodeLines[T any](t testing.TB, text string) (values []T) {
	t.Helper()
	for line := range strings.Lines(text) {
		values = append(values, Decode[T](t, line))
	}
	return values
}

// sandbox returns the sandbox ID of a pod's spec for containerd 2, whose CRI plugin sends it
// (internal/cri/server/container_create.go). That of 1.7 does not (pkg/cri/server).
func (n *Node) sandbox(spec *specs.Spec) string {
	if !n.containerd2() {
		return ""
	}
	return spec.Annotations["io.kubernetes.cri.sandbox-id"]
}

// StartBy starts a container by a runtime path, as the CRI plugin does for a handler with
// a runtime_path: the type of runhcs, with its options, and the path of a shim.
func (n *Node) StartBy(t testing.TB, shim, namespace, id string, spec *specs.Spec) error {
	t.Helper()
	return n.Client(t, namespace, Container{ID: id, Spec: n.SpecFile(t, id, JSON(t, spec)), Runtime: Runhcs, Path: shim, Options: true, Sandbox: n.sandbox(spec)})[0]
}

// Sandbox starts a pod's sandbox by the name of a runtime.
func (n *Node) Sandbox(t testing.TB, runtime, id string) Pod {
	t.Helper()
	pod := NewPod(id)
	n.MustRun(t, runtime, id, n.SandboxSpec(t, pod))
	return pod
}

// SandboxBy starts a pod's sandbox by the runtime path of the shim.
func (n *Node) SandboxBy(t testing.TB, id string) Pod {
	t.Helper()
	pod := NewPod(id)
	if err := n.StartBy(t, n.Shim(), CRINamespace, id, n.SandboxSpec(t, pod)); err != nil {
		t.Fatalf("start %s: %v", id, err)
	}
	return pod
}

// Allocated starts a container of pod by the name of the shim's runtime, with the advertiser's
// answer.
func (n *Node) Allocated(t testing.TB, pod Pod, id, name string, token allocation.Token) error {
	t.Helper()
	spec := n.ContainerSpec(t, pod, id, name)
	Allocate(spec, Display, token)
	return n.Run(t, Directx, id, spec)
}

// MustAllocate is [Node.Allocated] for a container that has to start, with those GPUs.
func (n *Node) MustAllocate(t testing.TB, pod Pod, id, name string, token allocation.Token, gpus ...GPU) {
	t.Helper()
	if err := n.Allocated(t, pod, id, name, token); err != nil {
		t.Fatalf("start %s: %v", id, err)
	}
	n.MustHave(t, id, gpus...)
}

// AllocatedBy starts a container of pod by the runtime path of the shim, with the
// advertiser's answer.
func (n *Node) AllocatedBy(t testing.TB, pod Pod, id string, token allocation.Token) {
	t.Helper()
	spec := n.ContainerSpec(t, pod, id, "app")
	Allocate(spec, Display, token)
	if err := n.StartBy(t, n.Shim(), CRINamespace, id, spec); err != nil {
		t.Fatalf("start %s: %v", id, err)
	}
}

// Run starts a container with ctr and a spec, and leaves it running. ctr has no command that
// only records a pod's sandbox, as the CRI plugin of containerd 2 does.
func (n *Node) Run(t testing.TB, runtime, id string, spec *specs.Spec) error {
	t.Helper()
	if sandbox := n.sandbox(spec); sandbox != "" {
		c := Container{ID: id, Spec: n.SpecFile(t, id, JSON(t, spec)), Runtime: runtime, Options: runtime == Runhcs, Sandbox: sandbox}
		return n.Client(t, defaultNamespace, c)[0]
	}
	return n.ctrRun(t, id, n.RunArgs(t, runtime, id, spec)...)
}

// ctrRun runs 'ctr run' and removes the container when the test ends.
func (n *Node) ctrRun(t testing.TB, id string, args ...string) error {
	t.Helper()
	t.Cleanup(func() { n.remove(defaultNamespace, id) })
	_, err := n.Ctr(args...)
	for n.lostProcess(t, err) {
		n.remove(defaultNamespace, id)
		_, err = n.Ctr(args...)
	}
	return err
}

// RunArgs returns the arguments of ctr for [Node.Run].
func (n *Node) RunArgs(t testing.TB, runtime, id string, spec *specs.Spec) []string {
	t.Helper()
	return []string{"run", "--detach", "--null-io", "--runtime", runtime, "--config", n.SpecFile(t, id, JSON(t, spec)), id}
}

// MustRun is [Node.Run] for a container that has to start.
func (n *Node) MustRun(t testing.TB, runtime, id string, spec *specs.Spec) {
	t.Helper()
	if err := n.Run(t, runtime, id, spec); err != nil {
		t.Fatalf("start container %s: %v", id, err)
	}
}

// RunImage starts a container of the node's image with ctr and flags, and leaves it running.
func (n *Node) RunImage(t testing.TB, runtime, id string, flags ...string) error {
	t.Helper()
	command := slices.Concat(flags, []string{n.imageName(), id}, n.Forever())
	return n.ctrRun(t, id, append([]string{"run", "--detach", "--null-io", "--runtime", runtime}, command...)...)
}

// MustRunImage is [Node.RunImage] for a container that has to start.
func (n *Node) MustRunImage(t testing.TB, runtime, id string, flags ...string) {
	t.Helper()
	if err := n.RunImage(t, runtime, id, flags...); err != nil {
		t.Fatalf("start %s: %v", id, err)
	}
}

// SpecFile writes a spec and returns its path.
func (n *Node) SpecFile(t testing.TB, id string, spec []byte) string {
	t.Helper()
	return n.File(t, "spec-"+id+".json", string(spec))
}

// remove removes what is left of containers, if anything.
func (n *Node) remove(namespace string, ids ...string) {
	for _, command := range [][]string{{"tasks", "rm", "--force"}, {"containers", "rm"}} {
		_, _ = n.ctr(4*stepTimeout, slices.Concat([]string{"--namespace", namespace}, command, ids)...)
	}
}

// Delete kills and removes a running container. Nothing of it is left.
func (n *Node) Delete(t testing.TB, id string) {
	t.Helper()
	n.DeleteIn(t, defaultNamespace, id)
}

// DeleteIn is [Node.Delete] in a namespace of containerd.
func (n *Node) DeleteIn(t testing.TB, namespace, id string) {
	t.Helper()
	for _, args := range [][]string{{"tasks", "kill", "--signal", "9", id}, {"tasks", "rm", "--force", id}, {"containers", "rm", id}} {
		if _, err := n.Ctr(append([]string{"--namespace", namespace}, args...)...); err != nil && !strings.Contains(err.Error(), "exit code 137") {
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
	tasks := map[string]string{}
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] != "TASK" {
			tasks[fields[0]] = fields[2]
		}
	}
	return tasks
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

// StartHanging starts a standalone container with ctr, which is killed when ctx ends, and
// returns when the launcher waits: "before" it runs runhcs, or "after". The start continues
// with release, at the latest when the test ends, and ended has ctr's error.
func (n *Node) StartHanging(ctx context.Context, t testing.TB, when, id, request string) (release func(), ended <-chan error) {
	t.Helper()
	order := n.File(t, `launcher\hang-`+when+"-"+id, "")
	release = func() { _ = os.Remove(order) }
	t.Cleanup(release)
	args := append([]string{"--address", n.Pipe()}, n.RunArgs(t, Directx, id, n.Visible(t, id, request))...)
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
