//go:build e2e && windows

package windows

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/windows/bed"
)

// TestChain has what must hold with every release, without a configuration file of containerd.
func TestChain(t *testing.T) {
	t.Parallel()
	for name, release := range releases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t, bed.Options{Name: "chain-" + name, Release: release})
			pods := []part{
				{"pods", n.testPods}, {"extra mounts", n.testExtraMounts}, {"attacks", n.testAttacks}, {"many containers", n.testConcurrent},
			}
			if skipsShim(release) {
				pods = []part{{"kubelet injection", n.testSkipped}}
			}
			t.Run("parts", func(t *testing.T) {
				parallel(t, append(pods, part{"ctr", n.testStandalone}, part{"no request", n.testUntouched})...)
			})
			t.Run("a restart", func(t *testing.T) { n.testRestart(t, skipsShim(release)) })
			n.mustHaveNoConfig(t)
			if log := string(bed.ReadFile(t, n.Path("containerd.log"))); strings.Contains(log, "maybe created from v1.x") {
				t.Error("containerd did not find a pod's sandbox")
			}
		})
	}
}

// mustHaveNoConfig fails the test if something has configured containerd.
func (n node) mustHaveNoConfig(t *testing.T) {
	t.Helper()
	if !n.Doubled {
		return // It has the node's configuration of the network plugin.
	}
	for _, path := range []string{n.Path("config.toml"), `C:\Program Files\containerd\config.toml`} {
		if data := bed.ReadFile(t, path); data != nil {
			t.Errorf("%s was written: %s", path, data)
		}
	}
}

// testStandalone has containers of ctr without a flag for the runtime.
func (n node) testStandalone(t *testing.T) {
	first, second := n.GPUs[0], n.GPUs[1]
	device := func(g bed.GPU) []string { return []string{"--device", "vpci-location-path://" + g.LocationPath} }
	for name, test := range map[string]struct {
		flags []string
		want  []bed.GPU
	}{
		"all":    {bed.Visible("all"), n.GPUs},
		"twice":  {bed.Visible("1," + second.LocationPath + ",0"), n.GPUs},
		"device": {device(second), []bed.GPU{second}},
		"both":   {append(device(first), bed.Visible("0")...), []bed.GPU{first}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := n.Name("ctr-" + name)
			n.MustRunImage(t, id, test.flags...)
			n.MustHave(t, id, test.want...)
			n.Delete(t, id)
		})
	}
	parallel(t,
		part{"the class of all GPUs, with their files", func(t *testing.T) {
			id := n.Name("ctr-class")
			n.MustRunImage(t, id, "--device", "class://"+bed.DisplayClass)
			n.MustHaveClass(t, id, bed.FilesOf(n.GPUs...)...)
		}},
		part{"refused if none matches", func(t *testing.T) {
			id, value := n.Name("ctr-match"), "7"
			n.MustRefuse(t, id, n.RunImage(t, id, bed.Visible(value)...), `"`+value+`"`, "dxctl devices")
		}},
	)
}

// testPods has pods that the kubelet gave GPUs.
func (n node) testPods(t *testing.T) {
	pod := n.RunPod(t, n.Name("pods"))
	n.MustBeUnchanged(t, bed.CRINamespace, pod.ID)
	one := n.Record(t, n.GPUs[0].Replica(0), n.GPUs[0].Replica(1))
	for range 2 { // The second is a restart.
		id := n.MustStartContainer(t, pod, n.NewAllocated("one", one), n.GPUs[0])
		n.RemoveContainer(t, id)
	}
	n.MustStartContainer(t, pod, n.NewAllocated("two", n.Record(t, n.GPUs[0].Replica(2), n.GPUs[1].Replica(2))), n.GPUs...)
}

// testExtraMounts has pods whose annotations request files of the driver.
func (n node) testExtraMounts(t *testing.T) {
	gpu := n.GPUs[1]
	testutil.WriteFile(t, gpu.DriverStorePath+`\tool.exe`, "tool", 0o600)
	record := n.Record(t, gpu.Replica(3))
	start := func(pod, files string) (id string, err error) {
		p := n.RunPod(t, n.Name(pod), bed.Annotated(map[string]string{decision.ExtraMountsAnnotation: files}))
		return n.StartContainer(t, p, n.NewAllocated("tool", record))
	}
	id, err := start("mounts-refused", `[{"source": "tool.exe", "destination": "KERNEL32.dll"}]`)
	n.MustRefuse(t, id, err, "a file of Windows cannot be replaced")
	id, err = start("mounts", "tool.exe") // The refused start has not bound the allocation.
	testutil.NoError(t, err)
	n.MustHaveFiles(t, id, []bed.GPU{gpu}, append(bed.FilesOf(gpu), gpu.File("tool.exe", `System32\tool.exe`))...)
}

// testConcurrent starts containers of a pod concurrently.
func (n node) testConcurrent(t *testing.T) {
	pod := n.RunPod(t, n.Name("many"))
	var all sync.WaitGroup
	for i := range 24 {
		c := n.NewContainer(fmt.Sprintf("none-%d", i))
		var want []bed.GPU
		if i%3 != 0 {
			gpu := n.GPUs[i%2]
			c, want = n.NewAllocated(fmt.Sprintf("gpu-%d", i), n.Record(t, gpu.Replica(100+i))), []bed.GPU{gpu}
		}
		all.Go(func() {
			id, err := n.StartContainer(t, pod, c)
			if err != nil {
				t.Errorf("start %s: %v", c.GetMetadata().GetName(), err)
				return
			}
			n.MustHave(t, id, want...)
		})
	}
	all.Wait()
}

// unsupported is the error of runhcs for the interlock.
var unsupported = "specified device " + allocation.InterlockDeviceID + " has unsupported type " + allocation.InterlockDeviceType

// testSkipped starts containers of a pod in the shim process of its sandbox, without the shim:
// runhcs gets the interlock, or the device of kubelet injection.
func (n node) testSkipped(t *testing.T) {
	pod := n.RunPod(t, n.Name("skipped"))
	id, err := n.StartContainer(t, pod, n.NewAllocated("locked", n.Record(t, n.GPUs[0].Replica(23))))
	n.MustNotStart(t, id, err, unsupported)
	injected := n.NewContainer("injected")
	bed.AddDevice(injected, "vpci-location-path", n.GPUs[0].LocationPath)
	id, err = n.StartContainer(t, pod, injected)
	testutil.NoError(t, err)
	n.MustHaveFiles(t, id, n.GPUs[:1])
	if calls := n.ShimCalls(t, id); len(calls) > 0 {
		t.Errorf("the real shim was run: %q", calls)
	}
}

// testUntouched has containers that request no GPU.
func (n node) testUntouched(t *testing.T) {
	for name, flags := range map[string][]string{
		"none": nil, "off": bed.Visible("none"), "device": {"--device", "class://11111111-2222-3333-4444-555555555555"},
	} {
		t.Run("ctr "+name, func(t *testing.T) {
			t.Parallel()
			id := n.Name("none-" + name)
			n.MustRunImage(t, id, flags...)
			n.MustBeUnchanged(t, bed.DefaultNamespace, id)
		})
	}
	parallel(t,
		part{"a pod's container", func(t *testing.T) {
			pod, asks := n.RunPod(t, n.Name("asks")), n.NewContainer("asks")
			asks.Envs = []*cri.KeyValue{{Key: "DIRECTX_VISIBLE_DEVICES", Value: []byte("all")}} // It has no effect.
			id := n.MustStartContainer(t, pod, asks)
			if len(n.ShimCalls(t, id)) > 0 { // Not with 2.0.
				n.MustBeUnchanged(t, bed.CRINamespace, id)
			}
		}},
		part{"a host process", func(t *testing.T) {
			pod := n.RunPod(t, n.Name("host"), bed.HostProcess)
			n.MustBeUnchanged(t, bed.CRINamespace, pod.ID)
			id, err := n.StartContainer(t, pod, n.NewContainer("host"))
			// Wine lacks what such a container needs: the error must be runhcs' own.
			if n.Doubled != (err != nil && strings.Contains(err.Error(), "job object")) || !n.Doubled && err != nil {
				t.Errorf("it fails with %v", err)
			}
			if len(n.ShimCalls(t, id)) > 0 {
				n.MustBeUnchanged(t, bed.CRINamespace, id)
			}
		}},
	)
}

// testRestart restarts containerd while containers run.
func (n node) testRestart(t *testing.T, skipsShim bool) {
	pod := n.RunPod(t, n.Name("restart"))
	// run starts a container of the pod, with a GPU if containerd runs the shim for it.
	run := func(name string, gpu bed.GPU) string {
		t.Helper()
		if skipsShim {
			return n.MustStartContainer(t, pod, n.NewContainer(name))
		}
		return n.MustStartContainer(t, pod, n.NewAllocated(name, n.Record(t, gpu.Replica(30))), gpu)
	}
	app, alone := run("app", n.GPUs[0]), n.Name("restart-alone")
	n.MustRunImage(t, alone, bed.Visible("1")...)
	n.Kill()
	n.Start(t)
	n.MustRun(t, bed.CRINamespace, pod.ID, app)
	n.MustRun(t, bed.DefaultNamespace, alone)
	n.RemoveContainer(t, run("late", n.GPUs[1]))
	n.RemoveContainer(t, app)
	n.Delete(t, alone)
}
