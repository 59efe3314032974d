//go:build e2e && linux

package windows

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"directx-nri/test/windows/bed"
)

// displayClass is the device class that stands for all GPUs.
const displayClass = "5B45201D-F2F2-4F3B-85BB-30FF1F953599"

// addMount gives a container a mount of its own.
func addMount(s *specs.Spec, m bed.Mapped) {
	mount := specs.Mount{Source: m.HostPath, Destination: m.ContainerPath}
	if m.ReadOnly {
		mount.Options = []string{"ro"}
	}
	s.Mounts = append(s.Mounts, mount)
}

func testStandalone(t *testing.T, n node) {
	first, second := n.gpus[0], n.gpus[1]
	asked := func(value string) []string { return []string{"--env", "DIRECTX_VISIBLE_DEVICES=" + value} }
	device := func(g bed.GPU) []string { return []string{"--device", "vpci-location-path://" + g.Location} }
	for i, test := range []struct {
		name  string
		flags []string
		want  []bed.GPU
	}{
		{"has all GPUs by --env all", asked("all"), n.gpus},
		{"has a GPU by index", asked("1"), []bed.GPU{second}},
		{"has a GPU by location path", asked(first.Location), []bed.GPU{first}},
		{"has a GPU by LUID", asked(second.LUID), []bed.GPU{second}},
		{"has each GPU of a list once", asked("1," + second.Location + ",0"), n.gpus},
		{"has the device of --device once, with its files", device(first), []bed.GPU{first}},
		{"has the other device of --device once, with its files", device(second), []bed.GPU{second}},
		{"has a device once that is asked for in both ways", slices.Concat(device(first), asked("0")), []bed.GPU{first}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			id := "ctr-" + string(rune('a'+i))
			if err := n.RunImage(t, bed.Directx, id, test.flags...); err != nil {
				t.Fatalf("ctr run: %v", err)
			}
			n.mustHave(t, id, test.want...)
		})
	}

	t.Run("has the files of all GPUs by the class of all GPUs", func(t *testing.T) {
		t.Parallel()
		id := "ctr-class"
		if err := n.RunImage(t, bed.Directx, id, "--device", "class://"+displayClass); err != nil {
			t.Fatalf("ctr run: %v", err)
		}
		document := n.Document(t, id)
		if len(document.AssignedDevices) != 1 || document.AssignedDevices[0].InterfaceClassGUID != displayClass {
			t.Errorf("AssignedDevices are %+v, want the class alone", document.AssignedDevices)
		}
		mustMap(t, id, document, only(n.gpus...))
	})

	for i, test := range []struct {
		name  string
		flags []string
	}{
		{"is as without us when it asks for nothing", nil},
		{"is as without us when it asks for none", asked("none")},
		{"is as without us when its device is none of ours", []string{"--device", "class://11111111-2222-3333-4444-555555555555"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			id, plain := fmt.Sprintf("ctr-none-%d", i), fmt.Sprintf("ctr-bare-%d", i)
			for runtime, id := range map[string]string{bed.Directx: id, n.Plain(): plain} {
				if err := n.RunImage(t, runtime, id, test.flags...); err != nil {
					t.Fatalf("ctr run: %v", err)
				}
			}
			n.mustEqualPlain(t, id, plain)
		})
	}

	t.Run("is refused with a list of what there is when nothing matches", func(t *testing.T) {
		t.Parallel()
		for i, value := range []string{"7", "PCIROOT(0)#PCI(FF00)", "0x00000000_0x0000FFFF", "everything"} {
			id := fmt.Sprintf("ctr-match-%d", i)
			err := n.RunImage(t, bed.Directx, id, asked(value)...)
			n.mustRefuse(t, id, err, value, first.Location, second.Location)
		}
	})

	t.Run("has its GPUs the way nerdctl makes it", func(t *testing.T) {
		t.Parallel()
		id := "nerdctl"
		labels := nerdctlLabels(id)
		spec := n.Standalone(t, id)
		spec.Annotations = maps.Clone(labels)
		spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES=0")
		c := bed.Container{ID: id, Spec: n.SpecFile(t, id, bed.JSON(t, spec)), Labels: labels, Runtime: bed.Directx}
		for _, a := range n.Client(t, "nerdctl-test", c) {
			if a.Error != "" {
				t.Fatalf("start: %s", a.Error)
			}
		}
		n.mustHave(t, id, first)
	})

	t.Run("has its GPUs by the annotation", func(t *testing.T) {
		t.Parallel()
		id := "annotated"
		spec := n.Standalone(t, id)
		spec.Annotations = map[string]string{"directx.microsoft.com/visible-devices": "1"}
		n.MustRun(t, bed.Directx, id, bed.JSON(t, spec))
		n.mustHave(t, id, second)
	})
}

// nerdctlLabels are what `nerdctl run` puts on a container and into the
// annotations of its spec.
// https://github.com/containerd/nerdctl/blob/main/pkg/labels/labels.go
func nerdctlLabels(id string) map[string]string {
	return map[string]string{
		"nerdctl/namespace":   "nerdctl-test",
		"nerdctl/name":        "name-" + id,
		"nerdctl/hostname":    id,
		"nerdctl/state-dir":   `C:\ProgramData\nerdctl\1935db59\containers\nerdctl-test\` + id,
		"nerdctl/networks":    `["nat"]`,
		"nerdctl/platform":    "windows/amd64",
		"nerdctl/log-uri":     "",
		"nerdctl/mounts":      "null",
		"nerdctl/extraHosts":  "[]",
		"nerdctl/auto-remove": "false",
		"nerdctl/pid-file":    "",
	}
}
