//go:build e2e && linux

package windows

import (
	"bytes"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"directx-nri/internal/allocation"
	"directx-nri/test/windows/bed"
)

// testChain has what must hold with every release.
func (n node) testChain(t *testing.T) {
	// Without the shim first: if that fails, the rest says nothing about the product.
	plain := n.name("bare")
	n.MustRun(t, n.Plain(), plain, bed.JSON(t, n.Standalone(t, plain)))
	n.Document(t, plain)
	pod := n.sandbox(t, bed.Directx, n.name("pod"))
	t.Run("a pod's container has its GPU and its files", func(t *testing.T) {
		t.Parallel()
		id := n.name("app")
		token := n.Record(t, bed.Display, n.gpus[0].Replica(20), n.gpus[0].Replica(21))
		if err := n.allocated(t, pod, id, "app", token); err != nil {
			t.Fatal(err)
		}
		n.mustHave(t, id, n.gpus[0])
		n.Delete(t, id)
		n.mustLeaveNothing(t, id)
	})
	t.Run("a standalone container has all GPUs", func(t *testing.T) {
		t.Parallel()
		id := n.name("all")
		n.MustRun(t, bed.Directx, id, n.visible(t, id, "all"))
		n.mustHave(t, id, n.gpus...)
		n.Delete(t, id)
		n.mustLeaveNothing(t, id)
	})
	t.Run("a container without a request is unchanged", func(t *testing.T) {
		t.Parallel()
		id := n.name("none")
		n.MustRun(t, bed.Directx, id, bed.JSON(t, n.Standalone(t, id)))
		n.mustEqualPlain(t, id, plain)
	})
	t.Run("the real shim gets the runtime's options", func(t *testing.T) {
		t.Parallel()
		id, plain := n.name("options"), n.name("options-bare")
		for shim, id := range map[string]string{directxShim: id, runhcsShim: plain} {
			n.startBy(t, n.Path(shim), "default", id, n.Standalone(t, id))
		}
		got, want := n.ShimCalls(t, id)[0].Stdin, n.ShimCalls(t, plain)[0].Stdin
		if len(want) == 0 || !bytes.Equal(got, want) {
			t.Errorf("the real shim got %q, and without the shim %q", got, want)
		}
	})
	t.Run("a forged token is refused", func(t *testing.T) {
		t.Parallel()
		id := n.name("refused")
		n.mustRefuse(t, id, n.allocated(t, pod, id, "refused", allocation.NewToken()), `"refused"`, "DIRECTX_ALLOCATION_DISPLAY", pod.Name)
		n.mustLeaveNothing(t, id)
	})
	t.Run("runhcs refuses the interlock", func(t *testing.T) {
		t.Parallel()
		n.testInterlock(t, pod)
	})
}

// testInterlock starts containers with the interlock: by handlers without the shim,
// without a token, and then as they should be.
func (n node) testInterlock(t *testing.T, pod bed.Pod) {
	plain := n.sandbox(t, n.Plain(), n.name("plain-pod"))
	token := n.Record(t, bed.Display, n.gpus[1].Replica(22))
	locked := func(pod bed.Pod, id string) *specs.Spec {
		spec := n.ContainerSpec(t, pod, id, "locked")
		bed.Allocate(spec, bed.Display, token)
		return spec
	}
	says := []string{allocation.InterlockDeviceID, "unsupported type " + allocation.InterlockDeviceType}

	byName := n.name("locked-name")
	if err := n.Run(t, n.Plain(), byName, bed.JSON(t, locked(plain, byName))); err != nil {
		n.mustNotStart(t, byName, err.Error(), says...)
	} else {
		t.Errorf("container %s started without the shim", byName)
	}
	byPath := n.name("locked-path")
	c := runtimePath(bed.Container{ID: byPath, Spec: n.SpecFile(t, byPath, bed.JSON(t, locked(plain, byPath)))}, n.Path(runhcsShim))
	n.mustNotStart(t, byPath, n.Client(t, "default", c)[0].Error, says...)
	tokenless := n.name("locked-tokenless")
	spec := n.ContainerSpec(t, pod, tokenless, "tokenless")
	bed.Interlock(spec)
	if err := n.Run(t, bed.Directx, tokenless, bed.JSON(t, spec)); err != nil {
		n.mustNotStart(t, tokenless, err.Error(), allocation.InterlockDeviceID)
	} else {
		t.Errorf("container %s started without a token", tokenless)
	}
	for _, id := range []string{byName, byPath, tokenless} {
		n.mustLeaveNothing(t, id)
	}

	id := n.name("locked-shim")
	n.MustRun(t, bed.Directx, id, bed.JSON(t, locked(pod, id)))
	n.mustHave(t, id, n.gpus[1])
}
