//go:build e2e && linux

package e2e

import (
	"errors"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

// The variables that carry the tokens.
const (
	displayToken = "DIRECTX_ALLOCATION_DISPLAY"
	computeToken = "DIRECTX_ALLOCATION_COMPUTE"
)

// testTokens tests that only the kubelet's allocation grants a GPU, for every kind of
// container.
func (s *suite) testTokens(t *testing.T) {
	s.Part(t, "a pod's own request variables and annotations grant nothing", func(t *testing.T) {
		owner := s.RunPod(t, bed.GPUPod("owner", 1))
		token := s.Look(t, owner, "main").Tokens[displayToken]
		if len(token) != 32 {
			t.Fatalf("the token of a container with a GPU is %q, want 32 digits", token)
		}
		annotations := map[string]string{
			"directx.microsoft.com/extra-mounts": s.DeviceNode(s.Inventory.GPUs[0]),
			"directx.microsoft.com/devices":      s.Inventory.GPUs[0].LocationPath(),
			"directx.microsoft.com/adjustment":   "{}",
		}
		if !s.InjectByShim { // containerd gives the shim the pod's annotations as the container's, which is refused then.
			annotations["directx.microsoft.com/allocation.display"] = token
			annotations["directx.microsoft.com/allocation.compute"] = strings.Repeat("0", 32)
		}
		pod := s.Apply(t, bed.Pod{
			Name: "requests", Annotations: annotations,
			Containers: []bed.Container{{Name: "main", Env: map[string]string{
				"DIRECTX_VISIBLE_DEVICES": "all", "DIRECTX_ALLOCATION_SERVICE_HOST": "10.0.0.1", displayToken: "../../../../../../etc/passwd",
			}}},
		})
		s.WaitRunning(t, pod)
		view := s.MustHave(t, pod, "main")
		s.mustNotOpen(t, view, s.Inventory.GPUs[0])
	})

	s.Part(t, "a forged token starts nothing, and the event names it", func(t *testing.T) {
		mark := s.Kubelet.Mark()
		tokens := map[string]map[string]string{
			"made-up":     {displayToken: "0123456789abcdef0123456789abcdef"},
			"compute":     {computeToken: "0123456789abcdef0123456789abcdef"},
			"no-resource": {"DIRECTX_ALLOCATION_": "0123456789abcdef0123456789abcdef"},
		}
		var containers []bed.Container
		for name, env := range tokens {
			containers = append(containers, bed.Container{Name: name, Env: env})
		}
		pod := s.Apply(t, bed.Pod{Name: "made-up-token", Containers: containers})
		for name, env := range tokens {
			for variable := range env {
				bed.MustContain(t, "the event of container "+name, s.WaitNotStarted(t, pod, name, mark), name, variable)
			}
		}
	})

	s.Part(t, "another pod's token starts nothing and does not hurt its owner", func(t *testing.T) {
		owner := s.RunPod(t, bed.GPUPod("owner", 1))
		token := s.Look(t, owner, "main").Tokens[displayToken]
		mark := s.Kubelet.Mark()
		other := s.Apply(t, bed.Pod{Name: "other", Containers: []bed.Container{
			{Name: "main", Env: map[string]string{displayToken: token}},
			{Name: "second", Env: map[string]string{computeToken: token}},
		}})
		message := s.WaitNotStarted(t, other, "main", mark)
		bed.MustContain(t, "the event of a container with another pod's token", message, "main", displayToken)
		bed.MustContain(t, "the same, under the other resource's name", s.WaitNotStarted(t, other, "second", mark), "second")
		if strings.Contains(message, token) {
			t.Error("the event has the whole token")
		}
		s.crash(t, owner)
	})

	s.Part(t, "a pod that overrides its token does not start", func(t *testing.T) {
		mark := s.Kubelet.Mark()
		pod := s.Apply(t, bed.Pod{Name: "overrides", Containers: []bed.Container{
			{Name: "main", Display: 1, Env: map[string]string{displayToken: strings.Repeat("a", 32)}},
			{Name: "empty", Display: 1, Env: map[string]string{displayToken: ""}},
		}})
		bed.MustContain(t, "the event of an overridden token", s.WaitNotStarted(t, pod, "main", mark), "main", displayToken)
		bed.MustContain(t, "the event of an emptied token", s.WaitNotStarted(t, pod, "empty", mark), "empty", displayToken)
	})

	s.Part(t, "a container that holds both resources gets both", func(t *testing.T) {
		pod := s.RunPod(t, bed.Pod{Name: "both", Containers: []bed.Container{{Name: "main", Display: 1, Compute: 1}}})
		gpus := s.AssignedGPUs(t, pod, "main")
		if len(gpus) != 2 || gpus[1] != 2 {
			t.Errorf("the kubelet assigned GPUs %v, want one for display and number 2", gpus)
		}
		view := s.MustHave(t, pod, "main", gpus...)
		if view.Tokens[displayToken] == view.Tokens[computeToken] || len(view.Tokens) != 2 {
			t.Errorf("the container's tokens are %v, want two different ones", view.Tokens)
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
