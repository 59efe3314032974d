//go:build e2e && linux

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/test/bed"
)

// TestLargePods has pods that crash a containerd whenever an NRI plugin registers, so the plugin does not.
func TestLargePods(t *testing.T) {
	s := start(t, bed.Options{Replicas: 4, Inventory: bed.NewInventory(1, 0)})
	large := bed.Pod{Name: "large"}
	for i := range 10 {
		env := map[string]string{}
		for j := range 10 {
			env[fmt.Sprintf("LARGE_%d", j)] = strings.Repeat("x", 100<<10)
		}
		large.Containers = append(large.Containers, bed.Container{Name: fmt.Sprintf("c%d", i), Env: env})
	}
	pod := s.RunPod(t, large)
	s.RunPod(t, bed.GPUPod("plain-a", 0))
	s.RunPod(t, bed.GPUPod("plain-b", 0))

	s.Restart(t, s.Plugin)
	reason := fmt.Sprintf("delete the largest, such as pod default/%s", pod)
	bed.Eventually(t, 20*time.Second, "the plugin stays away", func() error {
		if err := s.CheckPlugin(); err == nil || !strings.Contains(err.Error(), reason) {
			return fmt.Errorf("the plugin is ready, or has another reason: %w", err)
		}
		return nil
	})
	mark := s.Kubelet.Mark()
	gpu := s.Apply(t, bed.GPUPod("gpu", 1))
	s.RunPod(t, bed.GPUPod("plain-c", 0))
	bed.MustContain(t, "the event of a pod with a GPU", s.WaitNotStarted(t, gpu, "main", mark), reason)
	report, _ := s.DxctlCommand("doctor", "--runtime-dir", s.RuntimeDir, "--cri-socket", s.Address()).CombinedOutput()
	bed.MustContain(t, "the report", string(report), reason)
	s.MustNotRun(t, gpu)
	if !s.Containerd.Running() {
		t.Errorf("containerd ended: %s", s.Containerd.Tail(30))
	}

	s.Remove(t, pod)
	s.WaitPlugin(t)
	s.SyncPods(t, gpu)
	s.WaitServed(t, gpu)
}

// testRestarts crashes and restarts a container and each program of the node, while two
// pods run.
func (s *suite) testRestarts(t *testing.T) {
	a := s.Apply(t, bed.GPUPod("long-a", 1))
	b := s.Apply(t, bed.Pod{Name: "long-b", Containers: []bed.Container{{Name: "main", Display: 2}, {Name: "side"}}})
	s.WaitRunning(t, a, b)

	s.Part(t, "a crashed container has the same GPUs again", func(t *testing.T) {
		s.crash(t, a)
		s.crash(t, b)
	})

	programs := []*bed.Process{s.Kubelet, s.Containerd, s.Plugin, s.Advertiser}
	terminate := func(p *bed.Process, t testing.TB) { p.Terminate(t) }
	for _, row := range []struct {
		name  string
		end   func(*bed.Process, testing.TB)
		which []*bed.Process
	}{
		{"the kubelet is restarted", terminate, []*bed.Process{s.Kubelet}},
		{"containerd is restarted", terminate, []*bed.Process{s.Containerd}},
		{"the advertiser is restarted", (*bed.Process).Stop, []*bed.Process{s.Advertiser}},
		{"the plugin is restarted", (*bed.Process).Stop, []*bed.Process{s.Plugin}},
		{"all are restarted", terminate, programs},
		{"all are killed", (*bed.Process).Kill, programs},
	} {
		s.Part(t, row.name, func(t *testing.T) {
			before := []bed.View{s.Look(t, a, "main"), s.Look(t, b, "main"), s.Look(t, b, "side")}
			s.RemoveDead(t, a, b)
			for _, p := range row.which {
				row.end(p, t)
			}
			for _, view := range before {
				if err := syscall.Kill(view.PID, 0); err != nil {
					t.Errorf("container %s ended with a program of the node", view.ID)
				}
			}
			s.startAgain(t, row.which)
			s.WaitRunning(t, a, b) // A kubelet that was restarted has to find them.
			for i, now := range []bed.View{s.Look(t, a, "main"), s.Look(t, b, "main"), s.Look(t, b, "side")} {
				if now.ID != before[i].ID || now.PID != before[i].PID {
					t.Errorf("a running container was replaced: %s with process %d is now %s with %d",
						before[i].ID, before[i].PID, now.ID, now.PID)
				}
			}
			s.crash(t, a)
			s.crash(t, b)
			s.RunPod(t, bed.GPUPod("new", 1))
		})
	}
}

// startAgain starts programs: the product's first, which then have to wait, and the
// kubelet last, which ends without containerd.
func (s *suite) startAgain(t *testing.T, which []*bed.Process) {
	t.Helper()
	for _, p := range []*bed.Process{s.Advertiser, s.Plugin, s.Containerd, s.Kubelet} {
		if slices.Contains(which, p) {
			p.Start(t)
		}
		if p == s.Containerd {
			s.WaitContainerd(t)
		}
	}
	s.WaitKubelet(t)
	s.WaitReady(t)
}

// crash kills the container "main" of a pod and expects the same GPUs in its
// successor.
func (s *suite) crash(t *testing.T, pod string) {
	t.Helper()
	assigned := s.AssignedGPUs(t, pod, "main")
	before := s.Look(t, pod, "main")
	if err := s.Compare(before, assigned...); err != nil {
		t.Fatalf("before the crash, pod %s: %v", pod, err)
	}
	s.Crash(t, pod, "main")
	after := s.MustHave(t, pod, "main", before.GPUs...)
	if diff := cmp.Diff(before.Allocations, after.Allocations); diff != "" {
		t.Errorf("the allocations of pod %s changed with the restart (-before +after):\n%s", pod, diff)
	}
}
