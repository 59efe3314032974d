//go:build e2e && windows

package windows

import (
	"bytes"
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
	parallel(t,
		part{"a pod's container has its GPU and its files", func(t *testing.T) {
			id := n.Name("app")
			token := n.Record(t, bed.Display, n.GPUs[0].Replica(20), n.GPUs[0].Replica(21))
			n.MustAllocate(t, pod, id, "app", token, n.GPUs[0])
			n.Delete(t, id)
		}},
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
		part{"a forged token is refused", func(t *testing.T) {
			id := n.Name("refused")
			n.MustRefuse(t, id, n.Allocated(t, pod, id, "refused", allocation.NewToken()), `"refused"`, "DIRECTX_ALLOCATION_DISPLAY", pod.Name)
		}},
		part{"runhcs refuses the interlock", func(t *testing.T) { n.testInterlock(t, pod) }},
	)
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
	says := []string{allocation.InterlockDeviceID, "unsupported type " + allocation.InterlockDeviceType}
	id := n.Name("locked-name")
	n.MustNotStart(t, id, n.Run(t, n.Plain(), id, locked(plain, id)), says...)
	id = n.Name("locked-path")
	n.MustNotStart(t, id, n.StartBy(t, n.Path(bed.RunhcsShim), "default", id, locked(plain, id)), says...)
	id = n.Name("locked-tokenless")
	spec := n.ContainerSpec(t, pod, id, "tokenless")
	bed.Interlock(spec)
	n.MustNotStart(t, id, n.Run(t, bed.Directx, id, spec), allocation.InterlockDeviceID)

	id = n.Name("locked-shim")
	n.MustRun(t, bed.Directx, id, locked(pod, id))
	n.MustHave(t, id, n.GPUs[1])
}
