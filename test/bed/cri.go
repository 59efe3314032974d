//go:build e2e && linux

package bed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
)

// containers returns containerd's containers of a pod, the newest first.
func (n *Node) containers(pod string) ([]*cri.Container, error) {
	response, err := n.CRI.ListContainers(context.Background(), &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		LabelSelector: map[string]string{"io.kubernetes.pod.name": n.podName(pod)},
	}})
	containers := response.GetContainers()
	slices.SortFunc(containers, func(a, b *cri.Container) int { return int(b.GetCreatedAt() - a.GetCreatedAt()) })
	return containers, err
}

// Exec runs a shell script in a container of a containerd, which may be restarting, and
// returns its output and exit status.
func Exec(t testing.TB, client cri.RuntimeServiceClient, id, script string) (output string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), podTimeout)
	defer cancel()
	response, err := client.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"/bin/sh", "-c", script}, Timeout: 20}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatalf("run %q in container %s: %v", script, id, err)
	}
	return string(response.GetStdout()) + string(response.GetStderr()), int(response.GetExitCode())
}

// View is what a running container has of this product, seen from the host.
type View struct {
	ID  string
	PID int
	// Allocations are the IDs of its allocations by annotation. [ViewProcess] does not read them.
	Allocations map[string]string
	// Annotations are those of its spec. [ViewProcess] does not read them.
	Annotations map[string]string
	// Hints is the variable DIRECTX_DEVICES, "" if it is not set.
	Hints string
	// GPUs are the GPUs whose device nodes it has, by index, in order.
	GPUs []int
	// Files are the files below /usr/lib/wsl, with their content.
	Files map[string]string
	// Writable are the mounts below /usr/lib/wsl that are not read-only.
	Writable []string
	// Mounts is how many mounts there are below /usr/lib/wsl.
	Mounts int
}

// Look looks at a container of a pod that runs.
func (n *Node) Look(t testing.TB, pod, container string) View {
	t.Helper()
	view, err := n.ViewContainer(n.ContainerID(t, pod, container))
	testutil.NoError(t, err)
	return view
}

// ViewContainer looks at a container, by its process's root directory.
func (n *Node) ViewContainer(id string) (View, error) {
	response, err := n.CRI.ContainerStatus(context.Background(), &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return View{}, err
	}
	var info struct {
		PID         int
		RuntimeSpec struct{ Annotations map[string]string }
	}
	err = json.Unmarshal([]byte(response.GetInfo()["info"]), &info)
	if err == nil && info.PID == 0 {
		err = errors.New("it does not run")
	}
	if err != nil {
		return View{}, fmt.Errorf("container %s: %w", id, err)
	}
	view, err := viewProcess(id, info.PID, fmt.Sprintf("%s/proc/%d", n.Root, info.PID))
	view.Allocations, view.Annotations = allocations(response.GetStatus().GetAnnotations()), info.RuntimeSpec.Annotations
	return view, err
}

// allocations returns the annotations that present an allocation.
func allocations(annotations map[string]string) map[string]string {
	found := maps.Clone(annotations)
	maps.DeleteFunc(found, func(key, _ string) bool { return !strings.HasPrefix(key, allocation.AnnotationPrefix) })
	return found
}

// ViewProcess looks at a container whose first process has the given ID.
func ViewProcess(id string, pid int) (View, error) {
	return viewProcess(id, pid, fmt.Sprintf("/proc/%d", pid))
}

func viewProcess(id string, pid int, proc string) (View, error) {
	view := View{ID: id, PID: pid, Files: make(map[string]string)}
	var environ []byte
	for start := time.Now(); ; time.Sleep(pollInterval) {
		var err error
		if environ, err = os.ReadFile(proc + "/environ"); err != nil {
			return View{}, err
		}
		// Before runc executes the container's program, the process has the environment of 'runc
		// init', and then none for a moment. Containers have a PATH. Its program does not tell:
		// runc 1.1 runs from a mount that it has removed, so that its path is "/".
		if len(environ) > 0 && !bytes.Contains(environ, []byte("_LIBCONTAINER_")) {
			break
		}
		if time.Since(start) > 10*time.Second {
			return View{}, fmt.Errorf("container %s does not run its program", id)
		}
	}
	for entry := range strings.SplitSeq(string(environ), "\x00") {
		if value, found := strings.CutPrefix(entry, gpuedits.DevicesVariable+"="); found {
			view.Hints = value
		}
	}
	nodes, _ := filepath.Glob(proc + "/root/dev/*")                              // The patterns are well formed.
	sameAsHost, _ := filepath.Glob(proc + "/root" + RunDir() + "/n*/gpus/node*") // SameDevicePaths
	for _, node := range append(nodes, sameAsHost...) {
		var stat unix.Stat_t
		if err := unix.Stat(node, &stat); err != nil {
			continue // A link to a descriptor of a process that ended.
		}
		if stat.Mode&unix.S_IFMT == unix.S_IFCHR && unix.Major(stat.Rdev) == gpuMajor {
			view.GPUs = append(view.GPUs, int(unix.Minor(stat.Rdev)))
		}
	}
	slices.Sort(view.GPUs)
	if err := view.readFiles(proc + "/root"); err != nil {
		return View{}, err
	}
	return view, view.readMounts(proc + "/mountinfo")
}

// readFiles reads the files below /usr/lib/wsl of a container's root.
func (v *View) readFiles(root string) error {
	return filepath.WalkDir(root+"/usr/lib/wsl", func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		v.Files[strings.TrimPrefix(path, root)] = string(data)
		return err
	})
}

// readMounts finds the mounts below /usr/lib/wsl in a container's mount table.
// https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html
func (v *View) readMounts(mountinfo string) error {
	table, err := os.ReadFile(mountinfo)
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) < 6 || !strings.HasPrefix(fields[4], "/usr/lib/wsl/") {
			continue
		}
		v.Mounts++
		if !slices.Contains(strings.Split(fields[5], ","), "ro") {
			v.Writable = append(v.Writable, fields[4])
		}
	}
	return err
}

// Compare returns how a container differs from one that has exactly the given
// GPUs, nil when it does not.
func (n *Node) Compare(view View, gpus ...int) error {
	want := slices.Sorted(slices.Values(gpus))
	if !slices.Equal(view.GPUs, want) {
		return fmt.Errorf("it has the device nodes of GPUs %v, want %v", view.GPUs, want)
	}
	files := make(map[string]string)
	mounts := make(map[string]bool)
	for _, index := range gpus {
		gpu := GPU{Index: index}
		if i := slices.IndexFunc(n.Inventory.GPUs, func(g GPU) bool { return g.Index == index }); i >= 0 {
			gpu = n.Inventory.GPUs[i] // It may have left the inventory.
		}
		maps.Copy(files, gpu.files(n.Dir))
		for _, m := range gpu.Mounts(n.Dir) {
			mounts[m.Destination] = true
		}
	}
	if diff := cmp.Diff(files, view.Files); diff != "" {
		return fmt.Errorf("driver files (-want +got):\n%s", diff)
	}
	if view.Mounts != len(mounts) {
		return fmt.Errorf("it has %d mounts of driver files, want %d", view.Mounts, len(mounts))
	}
	if len(view.Writable) > 0 {
		return fmt.Errorf("these mounts can be written to: %v", view.Writable)
	}
	return nil
}

// MustHave fails the test unless the running container has exactly the given
// GPUs, with all their files, read-only. It returns what it saw.
func (n *Node) MustHave(t testing.TB, pod, container string, gpus ...int) View {
	t.Helper()
	view := n.Look(t, pod, container)
	if err := n.Compare(view, gpus...); err != nil {
		t.Fatalf("container %s of pod %s: %v", container, pod, err)
	}
	t.Logf("container %s of pod %s has GPUs %v, %d files in %d read-only mounts", container, pod, view.GPUs, len(view.Files), view.Mounts)
	return view
}

// AssignedGPUs returns the indices of the GPUs that the kubelet gave to a
// container, one for each replica, in order.
func (n *Node) AssignedGPUs(t testing.TB, pod, container string) (gpus []int) {
	t.Helper()
	for _, h := range n.Held(t) {
		if h.Pod == pod && h.Container == container {
			gpus = append(gpus, h.GPU)
		}
	}
	slices.Sort(gpus)
	return gpus
}

// GPUOfReplica returns which GPU a device ID stands for, -1 if none.
func GPUOfReplica(id string) int {
	key, _, _ := allocation.ParseReplicaID(id)
	for index := range 1024 {
		if allocation.GPUKey((GPU{Index: index}).InstanceID()) == key {
			return index
		}
	}
	return -1
}

// CheckDevices fails the test when a running container of any pod has other
// GPUs than those that the kubelet assigned to it.
func (n *Node) CheckDevices(t testing.TB) {
	t.Helper()
	pods, err := n.pods()
	if err != nil {
		t.Errorf("check the devices of all pods: %v", err)
		return
	}
	for name, status := range pods {
		pod := strings.TrimSuffix(name, "-"+Name)
		for _, c := range status.Status.ContainerStatuses {
			if c.State.Running == nil {
				continue
			}
			view, err := n.ViewContainer(strings.TrimPrefix(c.ContainerID, "containerd://"))
			if err != nil {
				t.Errorf("look into container %s of pod %s: %v", c.Name, pod, err)
				continue
			}
			assigned := slices.Compact(n.AssignedGPUs(t, pod, c.Name))
			if err := n.Compare(view, assigned...); err != nil {
				t.Errorf("container %s of pod %s runs with other devices than the kubelet assigned (%v): %v", c.Name, pod, assigned, err)
			}
		}
	}
}

// Crash kills the first process of a running container and waits until the
// kubelet has started the container again. It returns what the new one has.
func (n *Node) Crash(t testing.TB, pod, container string) View {
	t.Helper()
	old := n.Look(t, pod, container)
	n.KillContainer(t, old)
	nudged := time.Now()
	n.WaitStatus(t, pod, "container "+container+" was started again", func(s Status) error {
		c, _ := s.Container(container)
		if c.State.Running != nil && !strings.HasSuffix(c.ContainerID, old.ID) {
			return nil
		}
		// Later than the kubelet's back-off after a crash.
		if time.Since(nudged) > 1500*time.Millisecond {
			n.SyncPods(t, pod)
			nudged = time.Now()
		}
		return errors.New("not yet")
	})
	return n.Look(t, pod, container)
}

// RemoveDead removes what is left of a pod's containers that have ended.
//
// A kubelet that starts looks its pods' containers up by name and takes any that
// has it, also one that has ended (ContainerMap.GetContainerID in Kubernetes 1.34):
// the pod is refused then, unless the device plugin registers before the pod is
// admitted.
func (n *Node) RemoveDead(t testing.TB, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		containers, err := n.containers(pod)
		testutil.NoError(t, err)
		for _, c := range containers {
			if c.GetState() == cri.ContainerState_CONTAINER_EXITED {
				_, err := n.CRI.RemoveContainer(context.Background(), &cri.RemoveContainerRequest{ContainerId: c.GetId()})
				testutil.NoError(t, err)
			}
		}
	}
}

// KillContainer kills the first process of a container.
func (n *Node) KillContainer(t testing.TB, view View) {
	t.Helper()
	testutil.NoError(t, syscall.Kill(view.PID, syscall.SIGKILL))
}

// StopSandbox stops a pod's sandbox, which the kubelet then replaces.
func (n *Node) StopSandbox(t testing.TB, pod string) {
	t.Helper()
	testutil.NoError(t, StopPods(n.CRI, map[string]string{"io.kubernetes.pod.name": n.podName(pod)}))
}
