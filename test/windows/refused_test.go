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

// testRefused has containers that do not start. A forged token is in testChain.
func (n node) testRefused(t *testing.T) {
	pod := n.sandbox(t, bed.Directx, "refused")
	for _, part := range []part{
		{"another container's token", func(t *testing.T) {
			token := n.Record(t, bed.Display, n.gpus[0].Replica(10))
			if err := n.allocated(t, pod, "refused-holder", "holder", token); err != nil {
				t.Fatalf("start the holder: %v", err)
			}
			other := n.sandbox(t, bed.Directx, "refused-other")
			id := "refused-pod"
			n.mustRefuse(t, id, n.allocated(t, other, id, "holder", token), `"holder"`, other.Name, "DIRECTX_ALLOCATION_DISPLAY")
			id = "refused-sibling"
			n.mustRefuse(t, id, n.allocated(t, pod, id, "sibling", token), `"sibling"`, "DIRECTX_ALLOCATION_DISPLAY")
		}},
		{"a GPU that no longer exists", func(t *testing.T) {
			gone := bed.GPU{InstanceID: `PCI\VEN_10DE&DEV_1EB8&GONE\1`}
			id := "refused-gone"
			n.mustRefuse(t, id, n.allocated(t, pod, id, "gone", n.Record(t, bed.Display, gone.Replica(0))), `"gone"`, bed.Display, gone.InstanceID)
		}},
		{"a damaged record", func(t *testing.T) {
			token := n.Record(t, bed.Display, n.gpus[0].Replica(11))
			if err := os.WriteFile(n.RecordFile(token), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
			id := "refused-damaged"
			n.mustRefuse(t, id, n.allocated(t, pod, id, "damaged", token), `"damaged"`, string(token.ID()))
		}},
		{"an invalid config.json", func(t *testing.T) {
			for id, spec := range map[string]string{
				"refused-json":  `{"process": {"env": ["DIRECTX_VISIBLE_DEVICES=all"]}, `,
				"refused-type":  `{"process": {"env": "DIRECTX_VISIBLE_DEVICES=all"}, "windows": {}}`,
				"refused-token": `{"process": {"env": ["DIRECTX_ALLOCATION_DISPLAY=` + string(allocation.NewToken()) + `"]}, "windows": {`,
			} {
				c := bed.Container{ID: id, Spec: n.SpecFile(t, id, []byte(spec)), Runtime: bed.Directx, Raw: true}
				n.mustRefuse(t, id, errors.New(n.Client(t, "default", c)[0].Error))
			}
		}},
		{"a standalone container with a token", func(t *testing.T) {
			id := "refused-standalone"
			spec := n.Standalone(t, id)
			bed.Allocate(spec, bed.Display, n.Record(t, bed.Display, n.gpus[0].Replica(12)))
			n.mustRefuse(t, id, n.Run(t, bed.Directx, id, bed.JSON(t, spec)), "DIRECTX_VISIBLE_DEVICES")
		}},
	} {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			part.run(t)
		})
	}
}

// TestBroken removes and damages the node policy. Containers without a request start
// unchanged, and those with a request are refused.
func TestBroken(t *testing.T) {
	t.Parallel()
	n := start(t, bed.Options{Name: "broken"})
	file := filepath.Join(n.StateDir(), "policy.json")
	if err := os.WriteFile(file, []byte(`{"shim":`), 0o600); err != nil {
		t.Fatal(err)
	}
	n.testBroken(t, "damaged", "policy.json")
	// Without a policy the GPUs are discovered.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	n.testBroken(t, "missing", "no GPU of this node matches")
}

func (n node) testBroken(t *testing.T, state, says string) {
	t.Helper()
	id, plain := "broken-"+state, "bare-"+state
	for runtime, id := range map[string]string{bed.Directx: id, n.Plain(): plain} {
		n.MustRun(t, runtime, id, bed.JSON(t, n.Standalone(t, id)))
	}
	n.mustEqualPlain(t, id, plain)
	id = "broken-asks-" + state
	n.mustRefuse(t, id, n.Run(t, bed.Directx, id, n.visible(t, id, "PCIROOT(0)#PCI(FF00)")), says)
}
