//go:build e2e && linux

package windows

import (
	"bytes"
	"testing"

	"directx-nri/internal/allocation"
	"directx-nri/test/windows/bed"
)

// testChain is the main chain, once around: what must hold with every release.
func testChain(t *testing.T, n node) {
	// First without us, for what that cannot do is none of our business.
	plain := n.name("bare")
	n.MustRun(t, n.Plain(), plain, bed.JSON(t, n.Standalone(t, plain)))
	n.Document(t, plain)
	pod := n.sandbox(t, bed.Directx, n.name("pod"))
	t.Run("a pod's container has its GPU and its files", func(t *testing.T) {
		t.Parallel()
		id := n.name("app")
		token := n.Record(t, bed.Display, n.gpus[0].Replica(0), n.gpus[0].Replica(1))
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
		spec := n.Standalone(t, id)
		spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES=all")
		n.MustRun(t, bed.Directx, id, bed.JSON(t, spec))
		n.mustHave(t, id, n.gpus...)
		n.Delete(t, id)
		n.mustLeaveNothing(t, id)
	})
	t.Run("what asks for nothing is as without us", func(t *testing.T) {
		t.Parallel()
		id := n.name("none")
		n.MustRun(t, bed.Directx, id, bed.JSON(t, n.Standalone(t, id)))
		n.mustEqualPlain(t, id, plain)
	})
	t.Run("the real shim gets the runtime's options as without us", func(t *testing.T) {
		t.Parallel()
		id, plain := n.name("options"), n.name("options-bare")
		for shim, id := range map[string]string{directxShim: id, runhcsShim: plain} {
			c := runtimePath(bed.Container{ID: id, Spec: n.SpecFile(t, id, bed.JSON(t, n.Standalone(t, id)))}, n.Path(shim))
			for _, a := range n.Client(t, "default", c) {
				if a.Error != "" {
					t.Fatalf("start %s: %s", id, a.Error)
				}
			}
		}
		got, want := n.ShimCalls(t, id)[0].Stdin, n.ShimCalls(t, plain)[0].Stdin
		if len(want) == 0 || !bytes.Equal(got, want) {
			t.Errorf("the real shim was given %q, and without us %q", got, want)
		}
	})
	t.Run("a token without a record is refused", func(t *testing.T) {
		t.Parallel()
		id := n.name("refused")
		n.mustRefuse(t, id, n.allocated(t, pod, id, "refused", allocation.NewToken()), `"refused"`, "DIRECTX_ALLOCATION_DISPLAY")
		n.mustLeaveNothing(t, id)
	})
}

// name returns an ID that no other node of the prefix has: HCS is one for all.
func (n node) name(suffix string) string { return n.Name() + "-" + suffix }
