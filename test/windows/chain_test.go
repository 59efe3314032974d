//go:build e2e && windows

package windows

import (
	"bytes"
	"os"
	"slices"
	"strings"
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
				{"pods", n.testPods}, {"extra mounts", n.testAnnotation}, {"refused", n.testRefused}, {"many containers", n.testConcurrent},
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
			n.MustHaveClass(t, id, bed.FilesOf(n.GPUs...))
		}},
		part{"refused with a list of the GPUs if none matches", func(t *testing.T) {
			id, value := n.Name("ctr-match"), "7"
			n.MustRefuse(t, id, n.RunImage(t, id, bed.Visible(value)...), value, first.LocationPath, second.LocationPath)
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

// testAnnotation has pods whose annotations request files of the driver.
func (n node) testAnnotation(t *testing.T) {
	gpu := n.GPUs[1]
	testutil.WriteFile(t, gpu.DriverStorePath+`\tool.exe`, "tool", 0o600)
	pod := n.RunPod(t, n.Name("mounts"), bed.Annotated(map[string]string{decision.ExtraMountsAnnotation: "tool.exe"}))
	id, err := n.StartContainer(t, pod, n.NewAllocated("tool", n.Record(t, gpu.Replica(3))))
	testutil.NoError(t, err)
	n.MustHaveFiles(t, id, []bed.GPU{gpu}, bed.FilesOf(gpu), []bed.Mapped{gpu.File("tool.exe", `System32\tool.exe`)})
}

// testRefused has containers that present something else than their own allocation.
func (n node) testRefused(t *testing.T) {
	key := allocation.AnnotationKey(bed.Display)
	taken, free, damaged := n.Record(t, n.GPUs[0].Replica(10)), n.Record(t, n.GPUs[0].Replica(11)), n.Record(t, n.GPUs[0].Replica(12))
	testutil.NoError(t, os.WriteFile(n.RecordFile(damaged), []byte("{"), 0o600))
	pod, other := n.RunPod(t, n.Name("refused")), n.RunPod(t, n.Name("other"))
	owner := n.RunPod(t, n.Name("owner"), bed.Annotated(map[string]string{key: string(free)}))
	n.MustStartContainer(t, pod, n.NewAllocated("holder", taken), n.GPUs[0])
	for name, test := range map[string]struct {
		pod  bed.Pod
		id   allocation.ID // "" for the interlock alone
		says string
	}{
		"made-up":           {pod, allocation.NewID(), "no allocation is recorded"},
		"malformed":         {pod, "x", "not the ID of an allocation"},
		"sibling":           {pod, taken, "belongs to another container"},
		"holder":            {other, taken, "belongs to another container"},
		"key-of-pod":        {owner, "", key},
		"key-of-pod-and-it": {owner, free, key},
		"damaged":           {pod, damaged, string(damaged)},
		"keyless":           {pod, "", "does not report which"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := n.NewAllocated(name, test.id)
			if test.id == "" {
				delete(c.Annotations, key)
			}
			id, err := n.StartContainer(t, test.pod, c)
			n.MustRefuse(t, id, err, test.says, `"`+name+`"`, test.pod.Name)
		})
	}
}

// unsupported is the error of runhcs for the interlock.
var unsupported = []string{allocation.InterlockDeviceID, "unsupported type " + allocation.InterlockDeviceType}

// testSkipped starts containers of a pod in the shim process of its sandbox, without the shim:
// runhcs gets the interlock, or the device of kubelet injection.
func (n node) testSkipped(t *testing.T) {
	pod := n.RunPod(t, n.Name("skipped"))
	id, err := n.StartContainer(t, pod, n.NewAllocated("locked", n.Record(t, n.GPUs[0].Replica(23))))
	n.MustNotStart(t, id, err, unsupported...)
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
	const request = "DIRECTX_VISIBLE_DEVICES"
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
			asks.Envs = []*cri.KeyValue{{Key: request, Value: []byte("all")}} // It has no effect.
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

// TestPaths has a driver with an unusual path. Wine 8 does not resolve paths over 260 characters
// (GetFinalPathNameByHandle).
func TestPaths(t *testing.T) {
	t.Parallel()
	gpus := machine.NewGPUs("paths")[:1]
	gpu := &gpus[0]
	gpu.InstanceID, gpu.DriverStorePath = `PCI\VEN_1002&DEV_1\ODD&0`, machine.Store+`\Grafik Träger – 显卡 драйвер.inf_amd64_1`
	gpu.System32, gpu.SysWOW64 = bed.Files("ein Treiber ä 卡.dll=treiber ä 卡.dll"), bed.Files("plain.dll")
	n := start(t, bed.Options{Name: "paths", GPUs: gpus})
	n.MustRunImage(t, "odd", bed.Visible(gpu.LocationPath)...)
	n.MustHave(t, "odd", *gpu)
}

// TestCleanup compares the calls of the real shim and HCS with those on a node without the product.
func TestCleanup(t *testing.T) {
	t.Parallel()
	ours, bare := start(t, bed.Options{Name: "clean"}), start(t, bed.Options{Name: "clean-bare", Bare: true})
	const refusedDir = `C:\hcs-double-refuse`
	for name, test := range map[string]struct {
		flags, command []string
		// end ends a container that runs.
		end func(t *testing.T, n node, id string)
	}{
		"deleted": {nil, ours.Forever(), func(t *testing.T, n node, id string) { n.Delete(t, id) }},
		"ended": {nil, []string{"cmd", "/c", "exit"}, func(t *testing.T, n node, id string) {
			n.awaitState(t, id, "STOPPED")
			_, err := n.Ctr("tasks", "rm", id)
			testutil.NoError(t, err)
		}},
		"refused": {[]string{"--mount", "type=bind,src=" + refusedDir + `,dst=C:\x,options=rbind:ro`}, ours.Forever(), nil},
		"killed": {nil, ours.Forever(), func(t *testing.T, n node, id string) {
			for _, p := range n.Processes(id) {
				p.Kill(t)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.end == nil {
				machine.NeedsDoubles(t, "the Host Compute Service has to refuse a container")
				testutil.NoError(t, os.MkdirAll(refusedDir, 0o700))
			}
			run := func(n node, id string, flags ...string) []string {
				t.Helper()
				err := n.RunCommand(t, id, append(flags, test.flags...), test.command)
				if started := err == nil; started != (test.end != nil) {
					t.Fatalf("start %s: %v", id, err)
				}
				if test.end != nil {
					test.end(t, n, id)
				}
				n.MustLeaveNothing(t, id)
				return n.calls(t, id)
			}
			want := run(bare, bare.Name(name))
			for suffix, flags := range map[string][]string{"gpu": bed.Visible("all"), "none": nil} {
				if got := run(ours, ours.Name(name+"-"+suffix), flags...); !slices.Equal(got, want) {
					t.Errorf("%s: the calls of the real shim and HCS are\n%q\nand without the shim\n%q", suffix, got, want)
				}
			}
		})
	}
}

// calls returns the calls of the real shim and of HCS for a container.
func (n node) calls(t *testing.T, id string) []string {
	t.Helper()
	var calls []string
	for _, call := range n.ShimCalls(t, id) {
		args := strings.ReplaceAll(strings.Join(call.Args, " "), id, "ID")
		calls = append(calls, strings.NewReplacer(n.Pipe(), "PIPE", n.Path(), "DIR").Replace(args))
	}
	for _, call := range n.Calls(t, id) {
		calls = append(calls, call.Name)
	}
	return calls
}

// TestOptions compares what the real shim reads from its standard input with a node without the product.
func TestOptions(t *testing.T) {
	t.Parallel()
	for name, release := range releases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, bare := start(t, bed.Options{Name: "in-" + name, Release: release}), start(t, bed.Options{Name: "in-bare-" + name, Release: release, Bare: true})
			var calls [2][]bed.ShimCall
			for i, n := range []node{ours, bare} {
				n.MustRunImage(t, n.Name("ctr"))
				calls[i] = n.ShimCalls(t, n.Name("ctr"))
			}
			if len(calls[0]) != 1 || len(calls[1]) != 1 || !bytes.Equal(calls[0][0].Stdin, calls[1][0].Stdin) {
				t.Errorf("the real shim got %+v, and without the shim %+v", calls[0], calls[1])
			}
		})
	}
}
