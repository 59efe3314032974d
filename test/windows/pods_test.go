//go:build e2e && windows

package windows

import (
	"testing"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/test/windows/bed"
)

func (n node) testPods(t *testing.T) {
	pod := n.Sandbox(t, bed.Directx, "pods")
	for i, test := range []struct {
		name     string
		replicas []allocation.Replica
		want     []bed.GPU
	}{
		{"the other GPU", []allocation.Replica{n.GPUs[1].Replica(0)}, n.GPUs[1:]},
		{"both GPUs", []allocation.Replica{n.GPUs[0].Replica(1), n.GPUs[1].Replica(1)}, n.GPUs},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			id := "pods-" + string(rune('a'+i))
			n.MustAllocate(t, pod, id, "app-"+id, n.Record(t, bed.Display, test.replicas...), test.want...)
		})
	}
	parallel(t,
		part{"a restart with the same token", func(t *testing.T) {
			token := n.Record(t, bed.Display, n.GPUs[1].Replica(5))
			for _, id := range []string{"pods-again-1", "pods-again-2"} {
				n.MustAllocate(t, pod, id, "again", token, n.GPUs[1])
				n.Delete(t, id)
			}
		}},
		part{"no GPU without an allocation", func(t *testing.T) {
			n.both(t, "pods-asks", "pods-asks-plain", func(runtime, id string) error {
				spec := n.ContainerSpec(t, pod, id, "asks")
				spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES=all")
				return n.Run(t, runtime, id, spec)
			})
		}},
	)
}

// testStandalone has containers of ctr. One without a request is in testChain, and other
// forms of requests are in testFlags.
func (n node) testStandalone(t *testing.T) {
	first, second := n.GPUs[0], n.GPUs[1]
	request := func(value string) []string { return []string{"--env", "DIRECTX_VISIBLE_DEVICES=" + value} }
	device := func(g bed.GPU) []string { return []string{"--device", "vpci-location-path://" + g.LocationPath} }
	for id, test := range map[string]struct {
		name  string
		flags []string
		want  []bed.GPU
	}{
		"ctr-twice":  {"a list that repeats a GPU", request("1," + second.LocationPath + ",0"), n.GPUs},
		"ctr-device": {"the device of --device, with its files", device(second), []bed.GPU{second}},
		"ctr-both":   {"a device that is requested in both ways", append(device(first), request("0")...), []bed.GPU{first}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			n.MustRunImage(t, bed.Directx, id, test.flags...)
			n.MustHave(t, id, test.want...)
		})
	}
	for id, test := range map[string]struct {
		name  string
		flags []string
	}{
		"ctr-off":   {"unchanged with a request for none", request("none")},
		"ctr-other": {"unchanged with another device", []string{"--device", "class://11111111-2222-3333-4444-555555555555"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			n.both(t, id, id+"-bare", func(runtime, id string) error { return n.RunImage(t, runtime, id, test.flags...) })
		})
	}
	parallel(t,
		part{"the class of all GPUs, with their files", func(t *testing.T) {
			id := "ctr-class"
			n.MustRunImage(t, bed.Directx, id, "--device", "class://"+bed.DisplayClass)
			n.MustHaveClass(t, id, bed.FilesOf(n.GPUs...))
		}},
		part{"refused with a list of the GPUs if none matches", func(t *testing.T) {
			id, value := "ctr-match", "7"
			n.MustRefuse(t, id, n.RunImage(t, bed.Directx, id, request(value)...), value, first.LocationPath, second.LocationPath)
		}},
	)
}
