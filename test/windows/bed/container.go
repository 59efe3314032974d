//go:build e2e && windows

package bed

import (
	"context"
	"encoding/json"
	"errors"
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
func (n *Node) Ctr(args ...string) (string, error) {
	for deadline := time.Now().Add(stepTimeout); ; {
		out, err := n.Run(n.Path(ctrExe), append([]string{"--address", n.Pipe()}, args...)...)
		// ctr 2 checks that the pipe exists, which fails while another process connects, and Wine
		// sometimes fails to load a library. ctr has sent no request then.
		if err == nil || time.Now().After(deadline) ||
			!strings.Contains(err.Error(), "cannot access socket") && !strings.Contains(err.Error(), "DLL initialization failed") {
			return out, err
		}
	}
}

// LostProcess reports whether err is that of a program that Wine could not start: sometimes, with several threads in
// the one that starts it, Wine 8 loses the new process's socket ("wine client error: sendmsg: Bad file descriptor"),
// and CreateProcess fails with ERROR_INTERNAL_ERROR. No program of the suite has started then.
func (n *Node) LostProcess(t testing.TB, err error) bool {
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

// JSON returns v as JSON.
func JSON(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	testutil.NoError(t, err)
	return data
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

// Forever returns a command line that runs until it is killed. The double of the Host
// Compute Service has one; any other ends immediately (../doubles/vmcompute.c).
func (m *Machine) Forever() []string {
	if m.Doubled {
		return []string{"forever"}
	}
	return []string{"ping", "-t", "127.0.0.1"}
}

// Visible returns flags of ctr that request GPUs.
func Visible(request string) []string { return []string{"--env", "DIRECTX_VISIBLE_DEVICES=" + request} }

// RunImage starts a container of the node's image with ctr and flags, and leaves it running.
func (n *Node) RunImage(t testing.TB, id string, flags ...string) error {
	t.Helper()
	t.Cleanup(func() { _ = n.Remove(id) })
	args := slices.Concat([]string{"run", "--detach", "--null-io"}, flags, []string{n.ImageName(), id}, n.Forever())
	_, err := n.Ctr(args...)
	for n.LostProcess(t, err) {
		_ = n.Remove(id)
		for _, call := range n.ShimCalls(t, id) { // The launcher notes a call before it starts the real shim.
			testutil.NoError(t, os.Remove(call.file))
		}
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

// Remove kills and removes a container.
func (n *Node) Remove(id string) error {
	_, err := n.Ctr("tasks", "rm", "--force", id)
	if err != nil && strings.Contains(err.Error(), "exit code 137") { // It was killed.
		err = nil
	}
	_, removeErr := n.Ctr("containers", "rm", id)
	return errors.Join(err, removeErr)
}

// Delete kills and removes a running container. Nothing of it is left.
func (n *Node) Delete(t testing.TB, id string) {
	t.Helper()
	if err := n.Remove(id); err != nil {
		t.Errorf("remove %s: %v", id, err)
	}
	n.MustLeaveNothing(t, id)
}

// MustRun fails the test unless containers run that were created once.
func (n *Node) MustRun(t testing.TB, namespace string, ids ...string) {
	t.Helper()
	out, err := n.Ctr("--namespace", namespace, "tasks", "ls")
	testutil.NoError(t, err)
	states := map[string]string{}
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) == 3 {
			states[fields[0]] = fields[2]
		}
	}
	for _, id := range ids {
		if created := n.Created(t, id); states[id] != "RUNNING" || created != 1 {
			t.Errorf("task %s is %q and was created %d times, want RUNNING, once", id, states[id], created)
		}
	}
}

// MustLeaveNothing waits until a container has left no bundle or compute system. When the suite
// ends, ../wine.sh looks for processes that are left.
func (n *Node) MustLeaveNothing(t testing.TB, id string) {
	t.Helper()
	Eventually(t, "nothing is left of "+id, func() error {
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
	// Config is the config.json of a start.
	Config string `json:"config"`
	file   string
}

// ShimCalls returns the calls of the real shim for a container, in order.
func (n *Node) ShimCalls(t testing.TB, id string) []ShimCall {
	t.Helper()
	files, err := filepath.Glob(n.Path("launcher", "call-*.json")) // In the order of their times.
	testutil.NoError(t, err)
	var calls []ShimCall
	for _, file := range files {
		if call := Decode[ShimCall](t, string(ReadFile(t, file))); call.ID == id {
			call.file = file
			calls = append(calls, call)
		}
	}
	return calls
}

// starts returns the config.json of each start of the real shim for a container.
func (n *Node) starts(t testing.TB, id string) (configs []string) {
	t.Helper()
	for _, call := range n.ShimCalls(t, id) {
		if call.Config != "" {
			configs = append(configs, call.Config)
		}
	}
	return configs
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
	if got, want := n.starts(t, id), string(stored.GetContainer().GetSpec().GetValue()); !slices.Equal(got, []string{want}) {
		t.Errorf("the real shim was started for %s with\n%s\nand containerd wrote\n%s", id, got, want)
	}
}

// FilesOf returns the mounts of a container with the GPUs: each file that exists, of the
// first GPU that has it.
func FilesOf(gpus ...GPU) []Mapped {
	var mounts []Mapped
	taken := map[string]bool{}
	for _, g := range gpus {
		for _, m := range g.Mounts() {
			if path := strings.ToLower(m.ContainerPath); !taken[path] {
				taken[path] = true
				mounts = append(mounts, m)
			}
		}
	}
	return mounts
}

// MustHave fails the test unless container id was created with exactly those GPUs and
// their files.
func (n *Node) MustHave(t testing.TB, id string, gpus ...GPU) {
	t.Helper()
	n.MustHaveFiles(t, id, gpus, FilesOf(gpus...)...)
}

// DisplayClass is the device class that stands for all GPUs.
const DisplayClass = "5B45201D-F2F2-4F3B-85BB-30FF1F953599"

// MustHaveClass fails the test unless container id was created with the class of all GPUs, no
// other device, and those files.
func (n *Node) MustHaveClass(t testing.TB, id string, files ...Mapped) {
	t.Helper()
	n.mustHave(t, id, []Assigned{{InterfaceClassGUID: DisplayClass}}, files)
}

// MustHaveFiles fails the test unless container id was created with exactly those GPUs and
// those files.
func (n *Node) MustHaveFiles(t testing.TB, id string, gpus []GPU, files ...Mapped) {
	t.Helper()
	var devices []Assigned
	for _, g := range gpus {
		devices = append(devices, Assigned{Type: "DeviceInstance", LocationPath: g.LocationPath})
	}
	n.mustHave(t, id, devices, files)
}

func (n *Node) mustHave(t testing.TB, id string, devices []Assigned, files []Mapped) {
	t.Helper()
	document := n.Document(t, id)
	byPath := func(a, b Assigned) int { return strings.Compare(a.LocationPath, b.LocationPath) }
	if got, want := slices.SortedFunc(slices.Values(document.AssignedDevices), byPath), slices.SortedFunc(slices.Values(devices), byPath); !slices.Equal(got, want) {
		t.Errorf("AssignedDevices of %s are %+v, want %+v", id, got, want)
	}
	byDestination := func(a, b Mapped) int { return strings.Compare(a.ContainerPath, b.ContainerPath) }
	same := func(a, b Mapped) bool {
		return strings.EqualFold(a.HostPath, b.HostPath) && strings.EqualFold(a.ContainerPath, b.ContainerPath) && a.ReadOnly == b.ReadOnly
	}
	got, want := slices.SortedFunc(slices.Values(document.MappedDirectories), byDestination), slices.SortedFunc(slices.Values(files), byDestination)
	if !slices.EqualFunc(got, want, same) {
		t.Errorf("MappedDirectories of %s are\n%+v\nwant\n%+v", id, got, want)
	}
}

// MustRefuse fails the test unless err, of ctr or the client, is one line of the shim
// that has parts in it, and the container was not created and has left nothing.
func (n *Node) MustRefuse(t testing.TB, id string, err error, parts ...string) {
	t.Helper()
	if err != nil && (strings.Count(err.Error(), "directx-nri: ") != 1 || strings.Contains(strings.TrimSpace(err.Error()), "\n")) {
		t.Errorf("the error is not one line of the shim: %q", err)
	}
	n.MustNotStart(t, id, err, parts...)
}

// MustNotStart fails the test unless the error has parts and the container was not
// created and has left nothing.
func (n *Node) MustNotStart(t testing.TB, id string, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("container %s started, want it refused", id)
		return
	}
	t.Logf("refused: %v", err)
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("container %s: the error does not contain %q: %v", id, part, err)
		}
	}
	if created := n.Created(t, id); n.Doubled && created != 0 {
		t.Errorf("container %s was created %d times", id, created)
	}
	n.MustLeaveNothing(t, id)
}
