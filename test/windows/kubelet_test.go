//go:build e2e && windows && !wine

package windows

import (
	"fmt"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/test/windows/bed"
)

// TestKubelet runs static pods with the real kubelet.exe, which needs Unix sockets: Wine has
// none. The GPUs are those of an inventory, and the containers get the class of all GPUs, which
// HCS accepts on a machine without one. The advertiser puts the shim in its place.
func TestKubelet(t *testing.T) {
	t.Parallel()
	gpus := machine.NewGPUs("kubelet")
	for i := range gpus { // No driver has these files.
		gpus[i].System32, gpus[i].SysWOW64 = bed.Files(fmt.Sprintf("directx-nri-test%d.dll", i)), nil
	}
	n := start(t, bed.Options{Name: "kubelet", GPUs: gpus, Settings: "assignmentMode: class-guid\ndriverFiles: auto\n", Assigned: true, Bare: true})
	k := n.StartKubelet(t)
	mustRun := func(pod string) (id string) {
		t.Helper()
		id = k.AwaitRunning(t, pod)
		devices, out := n.Document(t, id).AssignedDevices, k.Inside(t, pod, `cmd /c dir /b C:\Windows\System32\HostDriverStore`)
		t.Logf("container %s of pod %s has %+v and sees %q", id, pod, devices, out)
		if len(devices) != 1 || devices[0].InterfaceClassGUID != bed.DisplayClass || !strings.Contains(out, "FileRepository") {
			t.Errorf("container %s of pod %s does not have the class of all GPUs", id, pod)
		}
		return id
	}

	// The kubelet allocates when it creates the container.
	k.Apply(t, "gpu", 1)
	k.Apply(t, "none", 0)
	id, none := mustRun("gpu"), k.AwaitRunning(t, "none")
	if devices := n.Document(t, none).AssignedDevices; len(devices) != 0 {
		t.Errorf("the container without a request has devices %+v", devices)
	}
	unchanged := func(after string) {
		t.Helper()
		tasks := n.Tasks(t, bed.CRINamespace)
		if again := mustRun("gpu"); again != id || tasks[id] != "RUNNING" {
			t.Errorf("after %s the container is %s and its task %q, want %s, RUNNING", after, again, tasks[id], id)
		}
	}
	k.Start(t)
	unchanged("a restart of the kubelet")
	n.Kill()
	n.Start(t)
	unchanged("a restart of containerd")
	k.Remove(t)
	n.MustLeaveNothing(t, id)
	n.MustLeaveNothing(t, none)
}
