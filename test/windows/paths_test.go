//go:build e2e && linux

package windows

import (
	"strings"
	"testing"

	"directx-nri/test/windows/bed"
)

// TestPaths has a driver with an unusual path, and a large config.json. Wine 8 does not
// resolve paths over 260 characters (GetFinalPathNameByHandle).
func TestPaths(t *testing.T) {
	t.Parallel()
	gpu := bed.GPU{
		InstanceID: `PCI\VEN_1002&DEV_1\ODD&0`, Location: "PCIROOT(0)#PCI(1B00)", LUID: "0x00000000_0x0000D001",
		Store: bed.DriverStore + `\Grafik Träger – 显卡 драйвер.inf_amd64_1`,
		Files: []bed.File{{Source: "ein Treiber ä 卡.dll", Name: "treiber ä 卡.dll"}, {Source: "plain.dll", Name: "plain.dll", WOW64: true}},
	}
	n := start(t, bed.Options{Name: "paths", Inventory: &bed.Inventory{GPUs: []bed.GPU{gpu}}})

	t.Run("spaces and letters that are not ASCII", func(t *testing.T) {
		t.Parallel()
		id := "odd"
		n.MustRun(t, bed.Directx, id, n.visible(t, id, gpu.Location))
		n.mustHave(t, id, gpu)
	})

	t.Run("a config.json of 4 MB", func(t *testing.T) {
		t.Parallel()
		large := func(id string) []byte {
			spec := n.Standalone(t, id)
			spec.Annotations = map[string]string{"large": strings.Repeat("x", 2<<20)}
			for range 64 {
				spec.Process.Env = append(spec.Process.Env, "LARGE="+strings.Repeat("y", 32<<10))
			}
			return bed.JSON(t, spec)
		}
		id, plain := "large-none", "large-bare"
		n.MustRun(t, bed.Directx, id, large(id))
		n.MustRun(t, n.Plain(), plain, large(plain))
		if got := len(n.Config(t, id)); got < 4<<20 {
			t.Errorf("config.json has %d bytes, want 4 MB", got)
		}
		n.mustEqualPlain(t, id, plain)

		id = "large-request"
		data := strings.Replace(string(large(id)), `"env":[`, `"env":["DIRECTX_VISIBLE_DEVICES=0",`, 1)
		n.MustRun(t, bed.Directx, id, []byte(data))
		n.mustHave(t, id, n.gpus[0])
	})
}
