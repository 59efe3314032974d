//go:build e2e && linux

package windows

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"directx-nri/internal/allocation"
	"directx-nri/test/windows/bed"
)

func testRefused(t *testing.T, n node) {
	pod := n.sandbox(t, bed.Directx, "refused")

	t.Run("a token without a record", func(t *testing.T) {
		t.Parallel()
		id := "refused-record"
		n.mustRefuse(t, id, n.allocated(t, pod, id, "app", allocation.NewToken()), `"app"`, "DIRECTX_ALLOCATION_DISPLAY", pod.Name)
	})

	t.Run("another pod's token", func(t *testing.T) {
		t.Parallel()
		token := n.Record(t, bed.Display, n.gpus[0].Replica(10))
		if err := n.allocated(t, pod, "refused-holder", "holder", token); err != nil {
			t.Fatalf("start the holder: %v", err)
		}
		other := n.sandbox(t, bed.Directx, "refused-other")
		id := "refused-thief"
		n.mustRefuse(t, id, n.allocated(t, other, id, "holder", token), `"holder"`, other.Name, "DIRECTX_ALLOCATION_DISPLAY")
		id = "refused-sibling"
		n.mustRefuse(t, id, n.allocated(t, pod, id, "sibling", token), `"sibling"`, "DIRECTX_ALLOCATION_DISPLAY")
	})

	t.Run("a GPU that has vanished", func(t *testing.T) {
		t.Parallel()
		gone := bed.GPU{InstanceID: `PCI\VEN_10DE&DEV_1EB8&GONE\1`}
		id := "refused-gone"
		n.mustRefuse(t, id, n.allocated(t, pod, id, "gone", n.Record(t, bed.Display, gone.Replica(0))), `"gone"`, bed.Display, gone.InstanceID)
	})

	t.Run("a record that cannot be read", func(t *testing.T) {
		t.Parallel()
		token := n.Record(t, bed.Display, n.gpus[0].Replica(11))
		if err := os.WriteFile(n.RecordFile(token), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		id := "refused-unreadable"
		n.mustRefuse(t, id, n.allocated(t, pod, id, "unreadable", token), `"unreadable"`, string(token.ID()))
	})

	t.Run("a config.json that cannot be parsed", func(t *testing.T) {
		t.Parallel()
		for id, spec := range map[string]string{
			"refused-json":  `{"process": {"env": ["DIRECTX_VISIBLE_DEVICES=all"]}, `,
			"refused-type":  `{"process": {"env": "DIRECTX_VISIBLE_DEVICES=all"}, "windows": {}}`,
			"refused-token": `{"process": {"env": ["DIRECTX_ALLOCATION_DISPLAY=` + string(allocation.NewToken()) + `"]}, "windows": {`,
		} {
			c := bed.Container{ID: id, Spec: n.SpecFile(t, id, []byte(spec)), Runtime: bed.Directx, Raw: true}
			for _, a := range n.Client(t, "default", c) {
				var err error
				if a.Error != "" {
					err = errors.New(a.Error)
				}
				n.mustRefuse(t, id, err)
			}
		}
	})

	t.Run("a standalone container that presents a pod's token", func(t *testing.T) {
		t.Parallel()
		id := "refused-standalone"
		spec := n.Standalone(t, id)
		bed.Allocate(spec, bed.Display, n.Record(t, bed.Display, n.gpus[0].Replica(12)))
		n.mustRefuse(t, id, n.Run(t, bed.Directx, id, bed.JSON(t, spec)), "DIRECTX_VISIBLE_DEVICES")
	})
}

// TestBroken breaks our side of a node: what asks for nothing starts as if we
// were not there, and what asks is refused.
func TestBroken(t *testing.T) {
	t.Parallel()
	n := node{Node: start(t, bed.Options{Name: "broken"})}
	file := filepath.Join(n.StateDir(), "policy.json")
	if err := os.WriteFile(file, []byte(`{"shim":`), 0o600); err != nil {
		t.Fatal(err)
	}
	n.testBroken(t, "damaged", "policy.json")
	// Without a policy the GPUs are those that Windows reports.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	n.testBroken(t, "missing", "no GPU of this node matches")
}

// testBroken does so with a configuration file that is in the state named, and
// wants the refusal to have parts in it.
func (n node) testBroken(t *testing.T, state string, parts ...string) {
	t.Helper()
	id, plain := "broken-"+state, "bare-"+state
	for runtime, id := range map[string]string{bed.Directx: id, n.Plain(): plain} {
		n.MustRun(t, runtime, id, bed.JSON(t, n.Standalone(t, id)))
	}
	n.mustEqualPlain(t, id, plain)
	id = "broken-asks-" + state
	spec := n.Standalone(t, id)
	spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES=PCIROOT(0)#PCI(FF00)")
	n.mustRefuse(t, id, n.Run(t, bed.Directx, id, bed.JSON(t, spec)), parts...)
}
