//go:build e2e && linux

package e2e

import (
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/test/bed"
)

// TestKubeletInjection runs pods with injection: kubelet, without the plugin and the
// shim, on a containerd with NRI disabled. At the end it switches the node to the
// plugin.
func TestKubeletInjection(t *testing.T) {
	s := start(t, bed.Options{Inventory: bed.NewInventory(2, 1), NRIOff: true, Replicas: 4, Config: "injection: kubelet", Offered: map[string]int{bed.Display: 8}})
	bed.MustContain(t, "the advertiser's log", s.Advertiser.Log(0), "level=warning", "injection: kubelet", "docs/windows.md#kubelet-injection")

	one := s.Apply(t, bed.Pod{Name: "one", Containers: []bed.Container{{Name: "main", Display: 1}, {Name: "side"}}})
	both := s.Apply(t, bed.GPUPod("both", 2))
	s.WaitServed(t, one, both)
	s.mustBeInjected(t, one, both)
	s.mustNotOpen(t, s.Look(t, one, "side"), s.Inventory.GPUs[s.AssignedGPUs(t, one, "main")[0]])
	s.Crash(t, one, "main")
	s.mustBeInjected(t, one)

	// The kubelet restarts containers with the answers that it has saved.
	s.Advertiser.Stop(t)
	s.Advertiser.Start(t)
	s.WaitOffered(t)
	s.Crash(t, both, "main")
	s.mustBeInjected(t, both)

	s.EditContainerd(t, "disable = true", "disable = false")
	s.Plugin.Start(t)
	s.Configure(t, "", s.Offered)
	s.WaitPlugin(t)
	after := s.RunPod(t, bed.GPUPod("after", 1))
	if view := s.Look(t, after, "main"); len(view.Allocations) == 0 {
		t.Error("a container that the plugin served has no allocation")
	}
	// Containers that were there keep what the kubelet gave them, also when they restart.
	s.Crash(t, one, "main")
	s.mustBeInjected(t, one)
	s.CheckDevices(t)
}

// mustBeInjected fails the test unless container main of pods has its GPUs and hints, and no allocation's ID.
func (s *suite) mustBeInjected(t *testing.T, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		gpus := s.AssignedGPUs(t, pod, "main")
		view := s.MustHave(t, pod, "main", gpus...)
		if len(view.Allocations) > 0 {
			t.Errorf("pod %s has allocations: %v", pod, view.Allocations)
		}
		s.mustNotWrite(t, view)
		for _, index := range gpus {
			gpu := s.Inventory.GPUs[index]
			s.mustOpen(t, view, gpu)
			if !strings.Contains(view.Hints, gpu.LocationPath()) {
				t.Errorf("pod %s has GPUs %v and the hints %s", pod, gpus, view.Hints)
			}
		}
	}
}
