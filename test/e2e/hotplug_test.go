//go:build e2e && linux

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/test/bed"
)

// testHotplug removes GPUs from the inventory, makes them unhealthy, and restores them.
func (s *suite) testHotplug(t *testing.T) {
	all := s.Inventory
	s.Part(t, "a GPU that leaves is not offered, and works again when it is back", func(t *testing.T) {
		pod := s.RunPod(t, bed.GPUPod("holder", 1))
		gpu := all.GPUs[s.AssignedGPUs(t, pod, "main")[0]]
		view := s.MustHave(t, pod, "main", gpu.Index)

		s.WriteInventory(t, all.Without(gpu.Index))
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
		other := s.RunPod(t, bed.GPUPod("meanwhile", 1))
		s.MustHave(t, other, "main", 1-gpu.Index)

		s.WriteInventory(t, all)
		s.mustOffer(t, "the GPU is back", bed.Display, 8)
		s.SyncPods(t, pod)
		s.WaitRunning(t, pod)
		s.MustHave(t, pod, "main", gpu.Index)
	})

	s.Part(t, "a GPU that fails is not offered until it is well", func(t *testing.T) {
		failed := bed.NewInventory(2, 1)
		failed.GPUs[0].Unhealthy = "driver is not started (code 10)"
		s.WriteInventory(t, failed)
		s.mustOffer(t, "a GPU failed", bed.Display, 4)
		pod := s.RunPod(t, bed.GPUPod("healthy", 1))
		s.MustHave(t, pod, "main", 1)
		s.WriteInventory(t, all)
		s.mustOffer(t, "the GPU is well", bed.Display, 8)
	})

	s.Part(t, "a node may have no GPU", func(t *testing.T) {
		s.WriteInventory(t, &bed.Inventory{})
		s.mustOffer(t, "all GPUs left", bed.Display, 0)
		refused := s.Apply(t, bed.GPUPod("none", 1))
		bed.MustContain(t, "the refusal of a pod on a node without GPUs", s.WaitRefused(t, refused), bed.Display)
		s.RunPod(t, bed.GPUPod("plain", 0))

		// Daemons start without GPUs.
		s.RestartDaemons(t)
		s.WriteInventory(t, all)
		s.mustOffer(t, "GPUs are plugged in", bed.Display, 8)
		s.RunPod(t, bed.GPUPod("plugged", 1))
	})
}

// mustOffer fails the test unless the kubelet can allocate count devices of a resource soon: a change
// is read within 2 seconds, and GPUs are listed each 5 seconds.
func (s *suite) mustOffer(t *testing.T, when, resource string, count int) {
	t.Helper()
	took := bed.Eventually(t, 10*time.Second, fmt.Sprintf("%s: the kubelet offers %d of %s", when, count, resource), func() error {
		offered, err := s.Allocatable()
		if err == nil && offered[resource] != count {
			err = fmt.Errorf("it offers %d", offered[resource])
		}
		return err
	})
	t.Logf("%s: the kubelet offered %d of %s after %v", when, count, resource, took.Round(time.Millisecond))
}
