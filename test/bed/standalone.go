//go:build e2e && linux

package bed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// The runtimes of standalone containers, by containerd's names for them.
const (
	DirectX = "io.containerd.directx.v1"
	Runc    = "io.containerd.runc.v2"
)

// containerd's namespaces: of standalone containers, and of the CRI plugin's.
const (
	DefaultNamespace = "default"
	PodNamespace     = "k8s.io"
)

// snapshotter needs nothing of the kernel.
const snapshotter = "native"

// Ctr runs ctr on the node's containerd, in the namespace of standalone
// containers, and returns all that it prints. Unlike most of Node it may be
// called by tests side by side, as all of this file may.
func (n *Node) Ctr(args ...string) (output string, err error) {
	return n.ctr(DefaultNamespace, args...)
}

func (n *Node) ctr(namespace string, args ...string) (output string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	args = append([]string{"--address", n.Address(), "--namespace", namespace}, args...)
	out, err := exec.CommandContext(ctx, n.parts.Stock("ctr"), args...).CombinedOutput()
	return string(out), err
}

// CtrRun runs a script in a container by `ctr run --rm` with further flags, and
// returns all that ctr and the script print.
func (n *Node) CtrRun(id, script string, flags ...string) (output string, err error) {
	return n.Ctr(n.ctrRun(id, script, append([]string{"--rm"}, flags...))...)
}

// CtrDetach starts a container by `ctr run --detach` that runs until it is
// terminated, and removes it when the test ends.
func (n *Node) CtrDetach(t testing.TB, id string, flags ...string) {
	t.Helper()
	t.Cleanup(func() { n.CtrRemove(t, id) })
	if out, err := n.Ctr(n.ctrRun(id, Wait, append([]string{"--detach", "--null-io"}, flags...))...); err != nil {
		t.Fatalf("ctr run %s %v: %v\n%s", id, flags, err, out)
	}
}

func (n *Node) ctrRun(id, script string, flags []string) []string {
	return slices.Concat([]string{"run", "--snapshotter", snapshotter, "--cgroup", n.cgroup + "/" + id}, flags, []string{Image, id, "/bin/sh", "-c", script})
}

// CtrRemove ends and removes a container, as ctr does. One that is not there,
// or not any more, is removed.
func (n *Node) CtrRemove(t testing.TB, id string) {
	t.Helper()
	for _, args := range [][]string{{"task", "rm", "--force", id}, {"container", "rm", id}} {
		if out, err := n.Ctr(args...); err != nil && !strings.Contains(out, "not found") && !strings.Contains(out, "does not exist") {
			t.Errorf("ctr %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// Client makes standalone containers with containerd's client, as nerdctl does.
type Client struct {
	n          *Node
	containerd *client.Client
}

// Client returns a client of the namespace of standalone containers.
func (n *Node) Client(t testing.TB) *Client {
	t.Helper()
	containerd, err := client.NewWithConn(Dial(t, n.Address()))
	testutil.NoError(t, err)
	return &Client{n: n, containerd: containerd}
}

// context returns the context of calls in the client's namespace.
func (*Client) context() context.Context {
	return namespaces.WithNamespace(context.Background(), DefaultNamespace)
}

// task returns the task of a container.
func (c *Client) task(id string) (client.Task, error) {
	container, err := c.containerd.LoadContainer(c.context(), id)
	if err != nil {
		return nil, err
	}
	return container.Task(c.context(), nil)
}

// Standalone is a container that a client of containerd makes.
type Standalone struct {
	ID, Runtime string
	Annotations map[string]string
	Env         []string
	Mounts      []specs.Mount
	Devices     []specs.LinuxDevice
	// Script is what it runs with sh -c, by default a wait without end.
	Script string
}

// Create makes a container with a file system of its own, and no task.
func (c *Client) Create(s Standalone) error {
	image, err := c.containerd.GetImage(c.context(), Image)
	if err != nil {
		return err
	}
	spec := s.Spec(c.n.cgroup)
	_, err = c.containerd.NewContainer(c.context(), s.ID, client.WithRuntime(s.Runtime, nil),
		client.WithSnapshotter(snapshotter), client.WithNewSnapshot(s.ID, image), client.WithSpec(&spec))
	if err != nil {
		return fmt.Errorf("make container %s: %w", s.ID, err)
	}
	return nil
}

// Start makes and starts the task of a container and returns the ID of its
// process.
func (c *Client) Start(id string) (pid int, err error) {
	container, err := c.containerd.LoadContainer(c.context(), id)
	if err != nil {
		return 0, err
	}
	task, err := container.NewTask(c.context(), cio.NullIO)
	if err != nil {
		return 0, err
	}
	return int(task.Pid()), task.Start(c.context())
}

// Wait waits until a container's process has ended and returns its status.
func (c *Client) Wait(id string) (status int, err error) {
	task, err := c.task(id)
	if err != nil {
		return 0, err
	}
	ended, err := task.Wait(c.context())
	if err != nil {
		return 0, err
	}
	code, _, err := (<-ended).Result()
	return int(code), err
}

// DeleteTask removes the task of a container whose process has ended.
func (c *Client) DeleteTask(id string) error {
	task, err := c.task(id)
	if err == nil {
		_, err = task.Delete(c.context())
	}
	return err
}

// Delete ends and removes a container with all that belongs to it. What is not
// there is removed.
func (c *Client) Delete(id string) error {
	task, err := c.task(id)
	if err == nil {
		_, err = task.Delete(c.context(), client.WithProcessKill)
	}
	if err != nil && !isNotFound(err) {
		return err
	}
	container, err := c.containerd.LoadContainer(c.context(), id)
	if err == nil {
		err = container.Delete(c.context(), client.WithSnapshotCleanup)
	}
	if isNotFound(err) {
		return nil
	}
	return err
}

// isNotFound reports whether err is containerd's error for what does not exist (errdefs.ErrNotFound).
func isNotFound(err error) bool {
	_, ok := errors.AsType[interface {
		error
		NotFound()
	}](err)
	return ok
}

// Given returns the bytes of the spec that a container was made with, which is
// what containerd writes into its bundle.
func (c *Client) Given(t testing.TB, id string) []byte {
	t.Helper()
	container, err := c.containerd.ContainerService().Get(c.context(), id)
	if err != nil {
		t.Fatalf("ask containerd for container %s: %v", id, err)
	}
	return container.Spec.GetValue()
}

// Bundle returns the directory of a container's bundle.
func (c *Client) Bundle(id string) string {
	return filepath.Join(c.n.ContainerdState(), "io.containerd.runtime.v2.task", DefaultNamespace, id)
}

// Started returns the bytes of the spec that a container runs with.
func (c *Client) Started(t testing.TB, id string) []byte {
	t.Helper()
	return ReadFile(t, filepath.Join(c.Bundle(id), "config.json"))
}

// Traces returns what is left of a container: its record, its task, its directories.
func (c *Client) Traces(id string) []string {
	var traces []string
	if _, err := c.containerd.LoadContainer(c.context(), id); !isNotFound(err) {
		traces = append(traces, fmt.Sprintf("its record (%v)", err))
	}
	return append(traces, c.TaskTraces(id)...)
}

// TaskTraces returns what is left of a container's task.
func (c *Client) TaskTraces(id string) []string {
	var traces []string
	// Its record may be gone.
	if _, err := c.containerd.TaskService().Get(c.context(), &tasks.GetRequest{ContainerID: id}); status.Code(err) != codes.NotFound {
		traces = append(traces, fmt.Sprintf("its task (%v)", err))
	}
	for _, path := range []string{
		c.Bundle(id),
		filepath.Join(c.n.Dir, "root", "io.containerd.runtime.v2.task", DefaultNamespace, id),
		filepath.Join("/run/containerd/runc", DefaultNamespace, id),
	} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			traces = append(traces, fmt.Sprintf("%s (%v)", path, err))
		}
	}
	if pid := FindShim(id); pid != 0 {
		traces = append(traces, fmt.Sprintf("its shim, process %d", pid))
	}
	return traces
}

// FindShim finds the shim process of a standalone container, 0 when there is none.
func FindShim(id string) (pid int) {
	return FindProcess("containerd-shim-", " -namespace "+DefaultNamespace+" -id "+id+" ")
}

// View looks at a container that runs.
func (c *Client) View(t testing.TB, id string) View {
	t.Helper()
	task, err := c.task(id)
	testutil.NoError(t, err)
	view, err := ViewProcess(id, int(task.Pid()))
	if err != nil {
		t.Fatalf("look into container %s: %v", id, err)
	}
	return view
}

// Spec is the container's OCI runtime spec. It is like those of ctr and
// nerdctl, with the machine's network.
func (s Standalone) Spec(cgroup string) specs.Spec {
	script := s.Script
	if script == "" {
		script = Wait
	}
	rules := []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	for _, d := range s.Devices {
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: d.Type, Major: &d.Major, Minor: &d.Minor, Access: "rw"})
	}
	capabilities := []string{"CAP_CHOWN", "CAP_KILL", "CAP_MKNOD", "CAP_SETGID", "CAP_SETUID"}
	return specs.Spec{
		Version: "1.1.0",
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{
			Args: []string{"/bin/sh", "-c", script}, Env: append([]string{"PATH=/bin"}, s.Env...), Cwd: "/", NoNewPrivileges: true,
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
		},
		Annotations: s.Annotations,
		Mounts: append([]specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		}, s.Mounts...),
		Linux: &specs.Linux{
			CgroupsPath: cgroup + "/" + s.ID,
			Devices:     s.Devices,
			Resources:   &specs.LinuxResources{Devices: rules},
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
			},
		},
	}
}
