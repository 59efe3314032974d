//go:build e2e && linux

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"directx-nri/test/bed"
)

// TestKubeletInjection runs pods with injection: kubelet, without the plugin and the
// shim, on a containerd with NRI disabled. At the end it switches the node to the
// plugin.
func TestKubeletInjection(t *testing.T) {
	inventory := bed.NewInventory(2, 0)
	s := &suite{inventory: inventory}
	s.Node = bed.Start(t, bed.Options{
		Inventory: inventory, NRIOff: true, Config: "injection: kubelet\nreplicas: 4",
		Offered: map[string]int{bed.Display: 8},
	})
	mustContain(t, "the advertiser's log", strings.Join(warnings(s.Advertiser.Log(0)), "\n"),
		"injection: kubelet", "docs/kubelet-injection.md")

	one := s.Apply(t, bed.Pod{Name: "one", Containers: []bed.Container{{Name: "main", Display: 1}, {Name: "side"}}})
	both := s.Apply(t, bed.GPUPod("both", 2))
	s.WaitRunning(t, one, both)
	gpu := inventory.GPUs[s.AssignedGPUs(t, one, "main")[0]]
	s.mustBeInjected(t, one, "main", []int{gpu.Index}, gpu.LocationPath())
	s.mustBeInjected(t, both, "main", []int{0, 1}, inventory.GPUs[0].LocationPath(), inventory.GPUs[1].LocationPath())
	s.mustNotOpen(t, s.MustHave(t, one, "side"), gpu)
	s.Crash(t, one, "main")
	s.mustBeInjected(t, one, "main", []int{gpu.Index}, gpu.LocationPath())
	s.CheckDevices(t)
	s.mustBeAttributed(t, one, both)

	// The kubelet restarts containers with the answers that it has saved.
	s.Advertiser.Stop(t)
	s.Advertiser.Start(t)
	s.WaitOffered(t)
	s.Crash(t, both, "main")
	s.mustBeInjected(t, both, "main", []int{0, 1}, inventory.GPUs[0].LocationPath(), inventory.GPUs[1].LocationPath())
	s.testTwoResources(t)

	s.turnNRIOn(t)
	s.Plugin.Start(t)
	s.Configure(t, "replicas: 4")
	s.WaitPlugin(t)
	s.WaitReady(t)
	after := s.Apply(t, bed.GPUPod("after", 1))
	s.WaitRunning(t, after)
	if view := s.MustHave(t, after, "main", s.AssignedGPUs(t, after, "main")...); len(view.Tokens) == 0 {
		t.Error("a container that the plugin served has no token")
	}
	// Containers that were there keep what the kubelet gave them, also when they restart.
	s.Crash(t, one, "main")
	s.mustBeInjected(t, one, "main", []int{gpu.Index}, gpu.LocationPath())
	s.CheckDevices(t)
}

// warnings returns the lines of a log that are warnings.
func warnings(log string) []string {
	return slices.DeleteFunc(strings.Split(log, "\n"), func(line string) bool { return !strings.Contains(line, "level=warning") })
}

// mustBeInjected fails the test unless a container has these GPUs and no token, and
// has hints of the GPUs at these location paths.
func (s *suite) mustBeInjected(t *testing.T, pod, container string, gpus []int, paths ...string) {
	t.Helper()
	view := s.MustHave(t, pod, container, gpus...)
	if len(view.Tokens) > 0 {
		t.Errorf("container %s of pod %s has tokens: %v", container, pod, view.Tokens)
	}
	for _, index := range gpus {
		s.mustOpen(t, view, bed.GPU{Index: index})
	}
	s.mustNotWrite(t, view)
	output, _ := s.Exec(t, view.ID, `printf %s "$DIRECTX_DEVICES"`)
	var hints []struct{ LocationPath string }
	if output != "" {
		if err := json.Unmarshal([]byte(output), &hints); err != nil {
			t.Errorf("DIRECTX_DEVICES is %s: %v", output, err)
		}
	}
	var got []string
	for _, d := range hints {
		got = append(got, d.LocationPath)
	}
	// The kubelet sorts them in another way.
	if slices.Sort(got); !slices.Equal(got, paths) {
		t.Errorf("container %s of pod %s has hints of %v, want %v: %s", container, pod, got, paths, output)
	}
}

// mustBeAttributed waits until dxctl names the pods as holders of what they hold:
// Allocate does not say which pod it is for.
func (s *suite) mustBeAttributed(t *testing.T, pods ...string) {
	t.Helper()
	took := bed.Eventually(t, time.Minute, "dxctl names the holders", func() error {
		held := map[string]int{}
		for _, line := range s.allocations(t) {
			if line.State == "held" {
				held[strings.TrimSuffix(line.Pod, "-"+bed.Name)]++
			}
		}
		for _, pod := range pods {
			if want := len(s.AssignedGPUs(t, pod, "main")); held[pod] != want {
				return fmt.Errorf("pod %s holds %d replicas, want %d", pod, held[pod], want)
			}
		}
		return nil
	})
	t.Logf("dxctl named the holders after %v", took.Round(time.Millisecond))
}

// testTwoResources: the kubelet merges the answers for a container that holds
// GPUs of two resources. It would keep one hint of two, so there is none.
func (s *suite) testTwoResources(t *testing.T) {
	s.WriteInventory(t, bed.NewInventory(2, 1))
	s.Offered = map[string]int{bed.Display: 8, bed.Compute: 4}
	s.WaitOffered(t)
	pod := s.Apply(t, bed.Pod{Name: "two", Containers: []bed.Container{{Name: "main", Display: 1, Compute: 1}}})
	s.WaitRunning(t, pod)
	gpus := s.AssignedGPUs(t, pod, "main")
	if len(gpus) != 2 || gpus[1] != 2 {
		t.Errorf("the pod has GPUs %v, want one for display and the one for compute", gpus)
	}
	s.mustBeInjected(t, pod, "main", gpus)
	s.Crash(t, pod, "main")
	s.mustBeInjected(t, pod, "main", gpus)
}

// turnNRIOn enables NRI in containerd.
func (s *suite) turnNRIOn(t *testing.T) {
	t.Helper()
	file, err := os.ReadFile(s.ContainerdConfig())
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(file, []byte("disable = true"), []byte("disable = false"), 1)
	if bytes.Equal(changed, file) {
		t.Fatal("NRI is on already")
	}
	if err := os.WriteFile(s.ContainerdConfig(), changed, 0o644); err != nil {
		t.Fatal(err)
	}
	s.RestartContainerd(t)
	s.WaitKubelet(t)
}
