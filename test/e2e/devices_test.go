//go:build e2e && linux

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/test/bed"
)

// testDevices tests what a container with a GPU has, and that another container of its
// pod does not have it.
func (s *suite) testDevices(t *testing.T) {
	s.Part(t, "the container that asks has all, the other has nothing", func(t *testing.T) {
		pod := s.RunPod(t, bed.Pod{Name: "device", Containers: []bed.Container{
			{Name: "main", Display: 1}, {Name: "side"},
		}})
		gpus := s.AssignedGPUs(t, pod, "main")
		if len(gpus) != 1 {
			t.Fatalf("the kubelet assigned GPUs %v, want one", gpus)
		}
		gpu, main := s.Inventory.GPUs[gpus[0]], s.Look(t, pod, "main")
		s.mustOpen(t, main, gpu)
		s.mustNotWrite(t, main)

		side := s.Look(t, pod, "side")
		if len(side.Allocations) > 0 {
			t.Errorf("container side has allocations: %v", side.Allocations)
		}
		s.mustNotOpen(t, side, gpu)
	})
}

// mustOpen fails the test unless the container may open its device node. It has no
// driver, which the kernel reports only if the control group allows access.
func (s *suite) mustOpen(t *testing.T, view bed.View, gpu bed.GPU) {
	t.Helper()
	output, _ := bed.Exec(t, s.CRI, view.ID, "cat "+gpu.ContainerPath())
	if !strings.Contains(output, "No such device or address") {
		t.Errorf("opening %s in the container prints %q, want the answer of a device without a driver", gpu.ContainerPath(), output)
	}
}

// mustNotOpen fails the test when the container may open a GPU's device node
// that it makes for itself.
func (s *suite) mustNotOpen(t *testing.T, view bed.View, gpu bed.GPU) {
	t.Helper()
	output, _ := bed.Exec(t, s.CRI, view.ID, fmt.Sprintf("mknod /tmp/own c 61 %d && cat /tmp/own", gpu.Index))
	if !strings.Contains(output, "Operation not permitted") {
		t.Errorf("opening a device node of GPU %d that the container made prints %q, want a refusal", gpu.Index, output)
	}
}

// mustNotWrite fails the test when one of the container's driver files can be
// changed from inside, or a file can be added to a mounted directory.
func (s *suite) mustNotWrite(t *testing.T, view bed.View) {
	t.Helper()
	for path := range view.Files {
		targets := []string{path}
		if strings.Contains(path, ".inf/") {
			targets = append(targets, path+".new")
		}
		for _, target := range targets {
			output, status := bed.Exec(t, s.CRI, view.ID, "echo changed >"+target)
			if status == 0 || !strings.Contains(output, "Read-only file system") {
				t.Errorf("writing to %s in the container prints %q (status %d), want a read-only file system", target, output, status)
			}
		}
	}
}

// testSharing tests which GPUs pods get, and that no more pods start than fit.
func (s *suite) testSharing(t *testing.T) {
	s.Part(t, "two pods get different GPUs, eight fit, the ninth is refused", func(t *testing.T) {
		perGPU := make(map[int]int)
		var pods []string
		for i := range 8 {
			pod := s.RunPod(t, bed.GPUPod("share", 1))
			perGPU[s.AssignedGPUs(t, pod, "main")[0]]++
			pods = append(pods, pod)
			if i == 1 && len(perGPU) != 2 {
				t.Errorf("the first two pods share a GPU: %v", perGPU)
			}
		}
		if perGPU[0] != 4 || perGPU[1] != 4 {
			t.Errorf("eight pods are on these GPUs: %v, want four on each", perGPU)
		}
		ninth := s.Apply(t, bed.GPUPod("ninth", 1))
		bed.MustContain(t, "the refusal of the ninth pod", s.WaitRefused(t, ninth), bed.Display)

		s.Remove(t, append(pods, ninth)...)
		s.RunPod(t, bed.GPUPod("after", 1))
	})

	s.Part(t, "a container that asks for two gets two GPUs, each once", func(t *testing.T) {
		pod := s.RunPod(t, bed.GPUPod("two", 2))
		if gpus := s.AssignedGPUs(t, pod, "main"); !slices.Equal(gpus, []int{0, 1}) {
			t.Errorf("the kubelet assigned replicas of GPUs %v, want one each of 0 and 1", gpus)
		}
		view := s.MustHave(t, pod, "main", 0, 1)
		for _, gpu := range s.Inventory.GPUs[:2] {
			s.mustOpen(t, view, gpu)
		}
		s.mustNotOpen(t, view, s.Inventory.GPUs[2])
	})
}
