//go:build e2e && windows

package windows

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/windows/bed"
)

// testChain has what must hold with every release.
func (n node) testChain(t *testing.T) {
	// Without the shim first: if that fails, the rest says nothing about the product.
	plain := n.Name("bare")
	n.MustRun(t, n.Plain(), plain, n.Standalone(t, plain))
	n.Document(t, plain)
	pod := n.Sandbox(t, bed.Directx, n.Name("pod"))
	pods := []part{
		{"a pod's container has its GPU and its files", func(t *testing.T) {
			id := n.Name("app")
			token := n.Record(t, bed.Display, n.GPUs[0].Replica(20), n.GPUs[0].Replica(21))
			n.MustAllocate(t, pod, id, "app", token, n.GPUs[0])
			n.Delete(t, id)
		}},
		{"a forged token is refused", func(t *testing.T) {
			id := n.Name("refused")
			n.MustRefuse(t, id, n.Allocated(t, pod, id, "refused", allocation.NewToken()), `"refused"`, "DIRECTX_ALLOCATION_DISPLAY", pod.Name)
		}},
	}
	if n.SkipsShim() {
		pods = []part{{"containerd runs no shim for a pod's containers", func(t *testing.T) { n.testSkipped(t, pod) }}}
	}
	parallel(t, pods...)
	parallel(t,
		part{"a standalone container has all GPUs", func(t *testing.T) {
			id := n.Name("all")
			n.MustRun(t, bed.Directx, id, n.Visible(t, id, "all"))
			n.MustHave(t, id, n.GPUs...)
			n.Delete(t, id)
		}},
		part{"a container without a request is unchanged", func(t *testing.T) {
			id := n.Name("none")
			n.MustRun(t, bed.Directx, id, n.Standalone(t, id))
			n.MustEqualPlain(t, id, plain)
		}},
		part{"the real shim gets the runtime's options", func(t *testing.T) {
			id, plain := n.Name("options"), n.Name("options-bare")
			for shim, id := range map[string]string{bed.DirectxShim: id, bed.RunhcsShim: plain} {
				testutil.NoError(t, n.StartBy(t, n.Path(shim), "default", id, n.Standalone(t, id)))
			}
			got, want := n.ShimCalls(t, id)[0].Stdin, n.ShimCalls(t, plain)[0].Stdin
			if len(want) == 0 || !bytes.Equal(got, want) {
				t.Errorf("the real shim got %q, and without the shim %q", got, want)
			}
		}},
		part{"runhcs refuses the interlock", func(t *testing.T) { n.testInterlock(t, pod) }},
	)
}

// unsupported is the error of runhcs for the interlock.
var unsupported = []string{allocation.InterlockDeviceID, "unsupported type " + allocation.InterlockDeviceType}

// testSkipped starts containers of a pod in the shim process of its sandbox, without the shim:
// runhcs gets the interlock, or the device of kubelet injection.
func (n node) testSkipped(t *testing.T, pod bed.Pod) {
	id, injected := n.Name("skipped"), n.Name("skipped-injected")
	spec := n.ContainerSpec(t, pod, id, "skipped")
	bed.Allocate(spec, bed.Display, n.Record(t, bed.Display, n.GPUs[0].Replica(23)))
	n.MustNotStart(t, id, n.StartBy(t, n.Shim(), "default", id, spec), unsupported...)
	spec = n.ContainerSpec(t, pod, injected, "injected")
	spec.Windows.Devices = []specs.WindowsDevice{{ID: n.GPUs[0].LocationPath, IDType: "vpci-location-path"}}
	n.MustRun(t, bed.Directx, injected, spec)
	n.MustHaveFiles(t, injected, n.GPUs[:1])
	if calls := append(n.ShimCalls(t, id), n.ShimCalls(t, injected)...); len(calls) > 0 {
		t.Errorf("the real shim was run: %q", calls)
	}
	testutil.NoError(t, os.MkdirAll(n.Path("kubelet"), 0o700))
	out, _ := n.Dxctl(t, 1, "doctor", "--timeout", "5m", "--containerd-config", n.Path("containerd.toml"), "--cri-socket", n.Pipe(),
		"--kubelet-dir", n.Path("kubelet"), "--shim-dir", filepath.Dir(n.Shim()))
	for _, want := range []string{"runs the shim for a pod's sandbox only", "upgrade containerd to 2.0.6 or newer, or set injection: kubelet"} {
		if !strings.Contains(out, want) {
			t.Errorf("doctor does not print %q:\n%s", want, out)
		}
	}
}

// testInterlock starts containers with the interlock: by handlers without the shim,
// without a token, and then as they should be.
func (n node) testInterlock(t *testing.T, pod bed.Pod) {
	plain := n.Sandbox(t, n.Plain(), n.Name("plain-pod"))
	token := n.Record(t, bed.Display, n.GPUs[1].Replica(22))
	locked := func(pod bed.Pod, id string) *specs.Spec {
		spec := n.ContainerSpec(t, pod, id, "locked")
		bed.Allocate(spec, bed.Display, token)
		return spec
	}
	id := n.Name("locked-name")
	n.MustNotStart(t, id, n.Run(t, n.Plain(), id, locked(plain, id)), unsupported...)
	id = n.Name("locked-path")
	n.MustNotStart(t, id, n.StartBy(t, n.Path(bed.RunhcsShim), "default", id, locked(plain, id)), unsupported...)
	id = n.Name("locked-tokenless")
	spec := n.ContainerSpec(t, pod, id, "tokenless")
	bed.Interlock(spec)
	n.MustNotStart(t, id, n.Run(t, bed.Directx, id, spec), allocation.InterlockDeviceID)
	if n.SkipsShim() {
		return
	}

	id = n.Name("locked-shim")
	n.MustRun(t, bed.Directx, id, locked(pod, id))
	n.MustHave(t, id, n.GPUs[1])
}
