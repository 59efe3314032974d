//go:build e2e && linux

package windows

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"directx-nri/test/windows/bed"
)

func (n node) testStandalone(t *testing.T) {
	first, second := n.gpus[0], n.gpus[1]
	request := func(value string) []string { return []string{"--env", "DIRECTX_VISIBLE_DEVICES=" + value} }
	device := func(g bed.GPU) []string { return []string{"--device", "vpci-location-path://" + g.Location} }
	for i, test := range []struct {
		name  string
		flags []string
		want  []bed.GPU
	}{
		{"all GPUs", request("all"), n.gpus},
		{"a GPU by index", request("1"), []bed.GPU{second}},
		{"a GPU by location path", request(first.Location), []bed.GPU{first}},
		{"a GPU by LUID", request(second.LUID), []bed.GPU{second}},
		{"a list that repeats a GPU", request("1," + second.Location + ",0"), n.gpus},
		{"the device of --device, with its files", device(first), []bed.GPU{first}},
		{"the other device of --device, with its files", device(second), []bed.GPU{second}},
		{"a device that is requested in both ways", slices.Concat(device(first), request("0")), []bed.GPU{first}},
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

	t.Run("the class of all GPUs, with their files", func(t *testing.T) {
		t.Parallel()
		id := "ctr-class"
		if err := n.RunImage(t, bed.Directx, id, "--device", "class://"+displayClass); err != nil {
			t.Fatalf("ctr run: %v", err)
		}
		mustMap(t, id, n.mustHaveClass(t, id), filesOf(n.gpus...))
	})

	for i, test := range []struct {
		name  string
		flags []string
	}{
		{"unchanged without a request", nil},
		{"unchanged with a request for none", request("none")},
		{"unchanged with another device", []string{"--device", "class://11111111-2222-3333-4444-555555555555"}},
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

	t.Run("refused with a list of the GPUs if none matches", func(t *testing.T) {
		t.Parallel()
		for i, value := range []string{"7", "PCIROOT(0)#PCI(FF00)", "0x00000000_0x0000FFFF", "everything"} {
			id := fmt.Sprintf("ctr-match-%d", i)
			n.mustRefuse(t, id, n.RunImage(t, bed.Directx, id, request(value)...), value, first.Location, second.Location)
		}
	})

	t.Run("nerdctl's annotations", func(t *testing.T) {
		t.Parallel()
		id := "nerdctl"
		labels := nerdctlLabels(id)
		spec := n.Standalone(t, id)
		spec.Annotations = maps.Clone(labels)
		spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES=0")
		c := bed.Container{ID: id, Spec: n.SpecFile(t, id, bed.JSON(t, spec)), Labels: labels, Runtime: bed.Directx}
		if a := n.Client(t, "nerdctl-test", c)[0]; a.Error != "" {
			t.Fatalf("start: %s", a.Error)
		}
		n.mustHave(t, id, first)
	})

	t.Run("a request by annotation", func(t *testing.T) {
		t.Parallel()
		id := "annotated"
		spec := n.Standalone(t, id)
		spec.Annotations = map[string]string{"directx.microsoft.com/visible-devices": "1"}
		n.MustRun(t, bed.Directx, id, bed.JSON(t, spec))
		n.mustHave(t, id, second)
	})
}

// nerdctlLabels returns labels that `nerdctl run` sets and copies to annotations.
// https://github.com/containerd/nerdctl/blob/main/pkg/labels/labels.go
func nerdctlLabels(id string) map[string]string {
	return map[string]string{
		"nerdctl/namespace": "nerdctl-test",
		"nerdctl/state-dir": `C:\ProgramData\nerdctl\1935db59\containers\nerdctl-test\` + id,
		"nerdctl/networks":  `["nat"]`,
		"nerdctl/platform":  "windows/amd64",
		"nerdctl/log-uri":   "",
	}
}
