//go:build e2e && windows

package windows

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/internal/allocation"
	nodepolicy "github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/windows/bed"
)

// testRefused has containers that do not start. A forged token is in testChain.
func (n node) testRefused(t *testing.T) {
	pod := n.Sandbox(t, bed.Directx, "refused")
	parallel(t,
		part{"another container's token", func(t *testing.T) {
			token := n.Record(t, bed.Display, n.GPUs[0].Replica(10))
			if err := n.Allocated(t, pod, "refused-holder", "holder", token); err != nil {
				t.Fatalf("start the holder: %v", err)
			}
			other := n.Sandbox(t, bed.Directx, "refused-other")
			id := "refused-pod"
			n.MustRefuse(t, id, n.Allocated(t, other, id, "holder", token), `"holder"`, other.Name, "DIRECTX_ALLOCATION_DISPLAY")
			id = "refused-sibling"
			n.MustRefuse(t, id, n.Allocated(t, pod, id, "sibling", token), `"sibling"`, "DIRECTX_ALLOCATION_DISPLAY")
		}},
		part{"a damaged record", func(t *testing.T) {
			token := n.Record(t, bed.Display, n.GPUs[0].Replica(11))
			testutil.NoError(t, os.WriteFile(n.RecordFile(token), []byte("{"), 0o600))
			id := "refused-damaged"
			n.MustRefuse(t, id, n.Allocated(t, pod, id, "damaged", token), `"damaged"`, string(token.ID()))
		}},
		part{"an invalid config.json", func(t *testing.T) {
			for id, spec := range map[string]string{
				"refused-json": `{"process": {"env": ["DIRECTX_ALLOCATION_DISPLAY=` + string(allocation.NewToken()) + `"]}, "windows": {`,
				"refused-type": `{"process": {"env": "DIRECTX_VISIBLE_DEVICES=all"}, "windows": {}}`,
			} {
				c := bed.Container{ID: id, Spec: n.SpecFile(t, id, []byte(spec)), Runtime: bed.Directx, Raw: true}
				n.MustRefuse(t, id, n.Client(t, "default", c)[0])
			}
		}},
	)
}

// TestBroken removes and damages the node policy of a node without a configured real
// runtime. Containers without a request start unchanged, and those with a request are
// refused.
func TestBroken(t *testing.T) {
	t.Parallel()
	n := start(t, bed.Options{Name: "broken"})
	file := filepath.Join(n.StateDir, "policy.json")
	testutil.NoError(t, os.Remove(nodepolicy.RealShimFile(n.StateDir)))
	for _, test := range []struct {
		state  string
		change func() error
		says   string
	}{
		{"damaged", func() error { return os.WriteFile(file, []byte(`{"shim":`), 0o600) }, "policy.json"},
		{"lost", func() error { return os.Remove(file) }, "policy.json"},
	} {
		testutil.NoError(t, test.change())
		n.both(t, "broken-"+test.state, "bare-"+test.state, func(runtime, id string) error {
			return n.Run(t, runtime, id, n.Standalone(t, id))
		})
		id := "broken-asks-" + test.state
		n.MustRefuse(t, id, n.Run(t, bed.Directx, id, n.Visible(t, id, "PCIROOT(0)#PCI(FF00)")), test.says)
	}
}

// TestPaths has a driver with an unusual path, and a large config.json. Wine 8 does not
// resolve paths over 260 characters (GetFinalPathNameByHandle).
func TestPaths(t *testing.T) {
	t.Parallel()
	gpus := machine.NewGPUs("paths")[:1]
	gpu := &gpus[0]
	gpu.InstanceID, gpu.DriverStorePath = `PCI\VEN_1002&DEV_1\ODD&0`, machine.Store+`\Grafik Träger – 显卡 драйвер.inf_amd64_1`
	gpu.System32, gpu.SysWOW64 = bed.Files("ein Treiber ä 卡.dll=treiber ä 卡.dll"), bed.Files("plain.dll")
	n := start(t, bed.Options{Name: "paths", GPUs: gpus})
	large := func(spec *specs.Spec) *specs.Spec {
		spec.Annotations = map[string]string{"large": strings.Repeat("x", 4<<20)}
		return spec
	}
	parallel(t,
		part{"spaces and letters that are not ASCII", func(t *testing.T) {
			id := "odd"
			n.MustRun(t, bed.Directx, id, n.Visible(t, id, gpu.LocationPath))
			n.MustHave(t, id, *gpu)
		}},
		part{"a config.json of 4 MB", func(t *testing.T) {
			n.both(t, "large-none", "large-bare", func(runtime, id string) error { return n.Run(t, runtime, id, large(n.Standalone(t, id))) })
			if got := len(n.Config(t, "large-none")); got < 4<<20 {
				t.Errorf("config.json has %d bytes, want 4 MB", got)
			}
			id := "large-request"
			n.MustRun(t, bed.Directx, id, large(n.Visible(t, id, "0")))
			n.MustHave(t, id, *gpu)
		}},
	)
}
