//go:build e2e && windows && !wine

package windows

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
	corev1 "k8s.io/api/core/v1"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/shim/diversion"
	"github.com/directx-nri/directx-nri/test/windows/bed"
)

// TestKubelet runs static pods with the real kubelet.exe, which needs Unix sockets: Wine has
// none. The GPUs are those of an inventory, and the containers get the class of all GPUs, which
// HCS accepts on a machine without one.
func TestKubelet(t *testing.T) {
	t.Parallel()
	gpus := machine.NewGPUs("kubelet")
	for i := range gpus { // No driver has these files.
		gpus[i].System32, gpus[i].SysWOW64 = bed.Files(fmt.Sprintf("directx-nri-test%d.dll", i)), nil
	}
	n := start(t, bed.Options{Name: "kubelet", GPUs: gpus, Settings: "assignmentMode: class-guid\ndriverFiles: auto\n", Assigned: true})
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
	d := diversion.New(filepath.Dir(n.Shim()))
	_, err := d.Remove(t.Context())
	testutil.NoError(t, err)
	unchanged("the shim is removed")

	// Without the shim, runhcs gets the interlock: the kubelet repeats the answer to Allocate.
	_, err = n.Ctr("--namespace", bed.CRINamespace, "tasks", "kill", "--signal", "9", id)
	testutil.NoError(t, err)
	k.Await(t, "gpu", "runhcs refuses it", func(s corev1.ContainerStatus) bool {
		text := string(bed.JSON(t, s))
		return s.State.Waiting != nil && strings.Contains(text, allocation.InterlockDeviceID) && strings.Contains(text, "unsupported type "+allocation.InterlockDeviceType)
	})
	_, err = d.Install(t.Context(), n.Product())
	testutil.NoError(t, err)
	id = mustRun("gpu")
	k.Remove(t)
	n.MustLeaveNothing(t, id)
	n.MustLeaveNothing(t, none)
}

// TestClass starts containers with runhcs alone that have the class of all GPUs. Windows
// Server 2025 refuses files that it supplies itself: what it refuses is logged. The double of
// HCS refuses nothing.
func TestClass(t *testing.T) {
	t.Parallel()
	build := windows.RtlGetVersion().BuildNumber
	n := start(t, bed.Options{Name: "class", Assigned: true, Bare: true})
	const class, absent = "class://" + bed.DisplayClass, "vpci-location-path://PCIROOT(0)#PCI(FF00)"
	for id, test := range map[string]struct{ name, device, file string }{
		"class-alone":  {"alone", class, ""},
		"class-file":   {"with a file that no driver has", class, "directx-nri-test.dll"},
		"class-nvidia": {"with a file of NVIDIA's driver", class, "nvcuda.dll"},
		"class-amd":    {"with a file of AMD's driver", class, "amdhip64.dll"},
		"class-absent": {"a GPU that does not exist", absent, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			flags := []string{"--device", test.device}
			if test.file != "" {
				flags = append(flags, "--mount", "type=bind,src="+n.File(t, test.file, id)+`,dst=C:\Windows\System32\`+test.file+",options=rbind:ro")
			}
			err := n.RunImage(t, id, flags...)
			t.Logf("Windows build %d: %v", build, err)
			switch {
			case test.device == absent:
				n.MustNotStart(t, id, err)
			case err != nil && (build < 26100 || test.file == ""):
				t.Errorf("it does not start: %v", err)
			case err == nil:
				out, err := n.Inside(id, "cmd", "/c", `dir /b C:\Windows\System32\HostDriverStore & if exist C:\Windows\System32\`+test.file+" echo found")
				t.Logf("it sees %q, %v", out, err)
				if !strings.Contains(out, "FileRepository") || !strings.Contains(out, "found") {
					t.Errorf("it does not see the drivers of the host and %q", test.file)
				}
			}
		})
	}
}
