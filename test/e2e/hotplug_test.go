//go:build e2e && linux

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"directx-nri/test/bed"
)

// testHotplug removes GPUs from the inventory, makes them unhealthy, and restores them.
func (s *suite) testHotplug(t *testing.T) {
	s.run(t, "a GPU that leaves is not offered within a second, and works again when it is back", func(t *testing.T) {
		pod := s.Apply(t, bed.GPUPod("loses", 1))
		s.WaitRunning(t, pod)
		gpu := s.inventory.GPUs[s.AssignedGPUs(t, pod, "main")[0]]
		view := s.MustHave(t, pod, "main", gpu.Index)

		s.WriteInventory(t, s.inventory.Without(gpu.Index))
		s.mustOffer(t, "a GPU left that a container holds", bed.Display, 4)
		bed.Never(t, time.Second, "the container that holds the GPU is ended", func() error {
			if now := s.Look(t, pod, "main"); now.ID != view.ID {
				return fmt.Errorf("it is container %s now", now.ID)
			}
			return nil
		})

		mark := s.Kubelet.Mark()
		s.KillContainer(t, view)
		message := s.WaitNotStarted(t, pod, "main", mark)
		t.Logf("the event of a container that needs a GPU that left: %s", message)
		if !strings.Contains(message, gpu.LocationPath()) && !strings.Contains(message, gpu.InstanceID()) {
			t.Errorf("the event names neither %s nor %s", gpu.LocationPath(), gpu.InstanceID())
		}
		other := s.Apply(t, bed.GPUPod("meanwhile", 1))
		s.WaitRunning(t, other)
		s.MustHave(t, other, "main", 1-gpu.Index)

		s.WriteInventory(t, s.inventory)
		s.mustOffer(t, "the GPU is back", bed.Display, 8)
		s.Nudge(t, pod)
		s.WaitRunning(t, pod)
		s.MustHave(t, pod, "main", gpu.Index)
	})

	s.run(t, "a GPU that no pod holds leaves and comes back", func(t *testing.T) {
		s.WriteInventory(t, s.inventory.Without(2))
		s.mustOffer(t, "the last compute GPU left", bed.Compute, 0)
		s.WriteInventory(t, s.inventory)
		s.mustOffer(t, "the GPU is back", bed.Compute, 4)
		pod := s.Apply(t, bed.Pod{Name: "compute", Containers: []bed.Container{{Name: "main", Compute: 1}}})
		s.WaitRunning(t, pod)
		s.MustHave(t, pod, "main", 2)
	})

	s.run(t, "a GPU that fails is not offered until it is well", func(t *testing.T) {
		s.WriteInventory(t, s.inventory.WithUnhealthy(0, "driver is not started (code 10)"))
		s.mustOffer(t, "a GPU failed", bed.Display, 4)
		pod := s.Apply(t, bed.GPUPod("healthy", 1))
		s.WaitRunning(t, pod)
		s.MustHave(t, pod, "main", 1)
		s.WriteInventory(t, s.inventory)
		s.mustOffer(t, "the GPU is well", bed.Display, 8)
	})

	s.run(t, "a node may have no GPU", func(t *testing.T) {
		s.WriteInventory(t, &bed.Inventory{})
		s.mustOffer(t, "all GPUs left", bed.Display, 0)
		refused := s.Apply(t, bed.GPUPod("none", 1))
		mustContain(t, "the refusal of a pod on a node without GPUs", s.WaitRefused(t, refused), bed.Display)
		plain := s.Apply(t, bed.Pod{Name: "plain", Containers: []bed.Container{{Name: "main"}}})
		s.WaitRunning(t, plain)

		// Daemons start without GPUs.
		s.Advertiser.Stop(t)
		s.Plugin.Stop(t)
		s.Advertiser.Start(t)
		s.Plugin.Start(t)
		s.WaitReady(t)
		s.WriteInventory(t, s.inventory)
		s.mustOffer(t, "GPUs are plugged in", bed.Display, 8)
		pod := s.Apply(t, bed.GPUPod("plugged", 1))
		s.WaitRunning(t, pod)
		s.MustHave(t, pod, "main", s.AssignedGPUs(t, pod, "main")...)
	})

}

// mustOffer fails the test unless the kubelet can allocate count devices of a
// resource within a second from now.
func (s *suite) mustOffer(t *testing.T, when, resource string, count int) {
	t.Helper()
	took := bed.Eventually(t, 10*time.Second, fmt.Sprintf("%s: the kubelet offers %d of %s", when, count, resource), func() error {
		offered, err := s.Allocatable()
		if err == nil && offered[resource] != count {
			err = fmt.Errorf("it offers %d", offered[resource])
		}
		return err
	})
	if took > time.Second {
		t.Errorf("%s: the kubelet knew after %v, want a second at most", when, took)
	}
	t.Logf("%s: the kubelet offered %d of %s after %v", when, count, resource, took.Round(time.Millisecond))
}
