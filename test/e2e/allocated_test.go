//go:build e2e && linux

package e2e

import (
	"errors"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

// The annotations of containers that present an allocation.
const (
	displayKey = "directx.microsoft.com/allocation.display"
	computeKey = "directx.microsoft.com/allocation.compute"
)

func (s *suite) testAllocated(t *testing.T) {
	s.Part(t, "a container that holds both resources gets both", func(t *testing.T) {
		pod := s.RunPod(t, bed.Pod{Name: "both", Containers: []bed.Container{{Name: "main", Display: 1, Compute: 1}}})
		gpus := s.AssignedGPUs(t, pod, "main")
		if len(gpus) != 2 || gpus[1] != 2 {
			t.Errorf("the kubelet assigned GPUs %v, want one for display and number 2", gpus)
		}
		view := s.MustHave(t, pod, "main", gpus...)
		if ids := view.Allocations; len(ids) != 2 || ids[displayKey] == ids[computeKey] {
			t.Errorf("the container's allocations are %v, want two different ones", ids)
		}
		s.crash(t, pod)
	})
	s.Part(t, "an init container and the main container both have a GPU, also in a second sandbox", s.testInit)
}

// testInit has an init container, whose replica the kubelet also assigns to the main
// container.
func (s *suite) testInit(t *testing.T) {
	pod := s.Apply(t, bed.Pod{
		Name: "init",
		// Each step fails, and the pod with it, without a GPU.
		Init: []bed.Container{
			{Name: "first", Display: 1, Script: "ls /dev/dxg* /usr/lib/wsl/lib/libd3d12.so"},
			{Name: "second", Display: 2, Script: "ls /dev/dxg0 /dev/dxg1"},
			{Name: "none", Script: "! ls /dev/dxg*"},
		},
		Containers: []bed.Container{{Name: "main", Display: 1}, {Name: "other", Display: 1}},
	})
	s.WaitRunning(t, pod)
	for range 2 {
		before, err := s.Status(pod)
		testutil.NoError(t, err)
		gpus := make(map[string][]int)
		for _, name := range []string{"main", "other"} {
			gpus[name] = s.MustHave(t, pod, name, s.AssignedGPUs(t, pod, name)...).GPUs
		}
		s.StopSandbox(t, pod)
		after := s.WaitStatus(t, pod, "init containers ran again and the others run", func(now bed.Status) error {
			for _, name := range []string{"first", "second", "none", "main", "other"} {
				was, _ := before.Container(name)
				is, _ := now.Container(name)
				if is.ContainerID == was.ContainerID {
					return errors.New("container " + name + " is the old one")
				}
			}
			for _, name := range []string{"main", "other"} {
				if c, _ := now.Container(name); c.State.Running == nil {
					return errors.New("container " + name + " does not run")
				}
			}
			return nil
		})
		for _, name := range []string{"main", "other"} {
			s.MustHave(t, pod, name, gpus[name]...)
		}
		for _, c := range after.Status.InitContainerStatuses {
			if c.State.Terminated == nil || c.State.Terminated.ExitCode != 0 {
				t.Errorf("init container %s is %v, want exit status 0", c.Name, c.State)
			}
		}
	}
}
