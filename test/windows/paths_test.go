//go:build e2e && linux

package windows

import (
	"strings"
	"testing"

	"directx-nri/test/windows/bed"
)

// TestPaths has drivers with unusual paths, and a large config.json.
func TestPaths(t *testing.T) {
	t.Parallel()
	gpus := []bed.GPU{
		{
			InstanceID: `PCI\VEN_1002&DEV_1\ODD&0`, Location: "PCIROOT(0)#PCI(1B00)", LUID: "0x00000000_0x0000D001",
			Store: bed.DriverStore + `\Grafik Träger – 显卡 драйвер.inf_amd64_1`,
			Files: []bed.File{{Source: "ein Treiber ä 卡.dll", Name: "treiber ä 卡.dll"}, {Source: "plain.dll", Name: "plain.dll", WOW64: true}},
		},
		{
			InstanceID: `PCI\VEN_1002&DEV_1\ODD&1`, Location: "PCIROOT(0)#PCI(1C00)", LUID: "0x00000000_0x0000D002",
			Store: bed.DriverStore + strings.Repeat(`\a directory with a long name`, 10),
			Files: []bed.File{{Source: "deep.dll", Name: "deep.dll"}},
		},
	}
	n := start(t, bed.Options{Name: "paths", Inventory: &bed.Inventory{GPUs: gpus}})
	if length := len(gpus[1].Mounts()[0].HostPath); length <= 260 {
		t.Fatalf("the long path has %d characters, want more than 260", length)
	}

	for i, name := range []string{"spaces and letters that are not ASCII", "paths over 260 characters"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := "odd-" + string(rune('a'+i))
			switch err := n.Run(t, bed.Directx, id, n.visible(t, id, n.gpus[i].Location)); {
			case err == nil:
				n.mustHave(t, id, n.gpus[i])
			case i == 1 && strings.Contains(err.Error(), "deep.dll"):
				// The shim adds the mount, and runhcs cannot use such a path under Wine.
				t.Logf("refused: %v", err)
				if config := n.Config(t, id); !strings.Contains(config, "deep.dll") || n.Created(t, id) != 0 {
					t.Errorf("config.json is %s, want deep.dll mounted", config)
				}
			default:
				t.Errorf("start: %v", err)
			}
		})
	}

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
