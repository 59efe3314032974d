//go:build e2e && linux

package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"directx-nri/test/bed"
)

// stopSoon bounds how long a container may run without its GPU once the plugin
// is there to see it.
const stopSoon = 15 * time.Second

// testPluginAway: the plugin is down, hangs, or goes away in the middle of a
// creation.
func (s *suite) testPluginAway(t *testing.T) {
	s.run(t, "plugin down: a pod with a GPU waits and says why, one without starts", func(t *testing.T) {
		running := s.Apply(t, bed.GPUPod("running", 1))
		s.WaitRunning(t, running)
		s.Plugin.Stop(t)
		mark := s.Kubelet.Mark()
		gpu := s.Apply(t, bed.GPUPod("waits", 1))
		plain := s.Apply(t, bed.Pod{Name: "plain", Containers: []bed.Container{{Name: "main"}}})
		s.WaitRunning(t, plain)
		s.MustHave(t, plain, "main")
		mustContain(t, "the event of a pod while the plugin is down", s.WaitNotStarted(t, gpu, "main", mark), "not running", "directx-nri")

		// A container that crashes meanwhile waits too.
		mark = s.Kubelet.Mark()
		view := s.Look(t, running, "main")
		s.KillContainer(t, view)
		mustContain(t, "the event of a crashed container while the plugin is down", s.WaitNotStarted(t, running, "main", mark), "not running")
		s.mustNotRun(t, gpu)

		s.Plugin.Start(t)
		s.WaitRunning(t, gpu, running)
		s.MustHave(t, gpu, "main", s.AssignedGPUs(t, gpu, "main")...)
		s.MustHave(t, running, "main", view.GPUs...)
	})

	s.run(t, "plugin frozen before a creation: the pod waits and starts by itself", func(t *testing.T) {
		s.Plugin.Freeze(t)
		mark := s.Kubelet.Mark()
		pod := s.Apply(t, bed.GPUPod("frozen", 1))
		mustContain(t, "the event of a pod while the plugin is frozen", s.WaitNotStarted(t, pod, "main", mark), "does not answer")
		s.mustNotRun(t, pod)
		s.Plugin.Thaw(t)
		s.WaitRunning(t, pod)
		s.MustHave(t, pod, "main", s.AssignedGPUs(t, pod, "main")...)
	})

	s.run(t, "plugin gone during a creation: the container does not stay", s.testGoneDuringCreation)
	s.run(t, "plugin frozen at odd moments: pods come up with their GPUs", s.testFreezes)
	s.run(t, "kubelet restarted while both daemons are down: a crashed container does not stay", s.testUnguarded)
}

// mustNotRun fails the test when a container of the pod runs.
func (s *suite) mustNotRun(t *testing.T, pod string) {
	t.Helper()
	status, err := s.Status(pod)
	if err != nil {
		t.Fatal(err)
	}
	if c, _ := status.Container("main"); c.State.Running != nil {
		t.Errorf("container main of pod %s runs", pod)
	}
}

// testGoneDuringCreation takes the kubelet's place to choose the moment: the
// plugin goes after PreStartContainer, so that containerd drops it and creates
// the container without its GPU.
func (s *suite) testGoneDuringCreation(t *testing.T) {
	s.Kubelet.Freeze(t)
	gpu := s.inventory.GPUs[1]
	plugin, both := []*bed.Process{s.Plugin}, []*bed.Process{s.Plugin, s.Advertiser}
	freeze, thaw := func(t *testing.T, p *bed.Process) { p.Freeze(t) }, func(t *testing.T, p *bed.Process) { p.Thaw(t) }
	kill, start := func(t *testing.T, p *bed.Process) { p.Kill(t) }, func(t *testing.T, p *bed.Process) { p.Start(t) }
	for i, row := range []struct {
		name       string
		which      []*bed.Process
		gone, back func(*testing.T, *bed.Process)
		// backFirst brings them back between the creation and the start.
		backFirst bool
	}{
		{"plugin frozen, thawed after the start", plugin, freeze, thaw, false},
		{"plugin frozen, thawed before the start", plugin, freeze, thaw, true},
		{"plugin killed, back after the start", plugin, kill, start, false},
		{"plugin killed, back before the start", plugin, kill, start, true},
		// The advertiser guards against a missing plugin: without it too.
		{"both frozen, thawed after the start", both, freeze, thaw, false},
		{"both frozen, thawed before the start", both, freeze, thaw, true},
		{"both killed, back after the start", both, kill, start, false},
		{"both killed, back before the start", both, kill, start, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			sandbox := s.RunSandbox(t, "direct")
			env := s.Allocate(t, gpu, i%4)
			back := func() {
				for _, p := range row.which {
					row.back(t, p)
				}
				s.WaitPlugin(t)
			}
			for _, p := range row.which {
				row.gone(t, p)
			}
			id, err := sandbox.Create("main", env)
			if row.backFirst {
				back()
			}
			if err != nil {
				t.Logf("the creation was refused: %v", err)
			} else if err := sandbox.Start(id); err != nil {
				t.Logf("the start was refused: %v", err)
			} else {
				t.Logf("the container started without its GPU")
			}
			if !row.backFirst {
				back()
			}
			if id != "" {
				took := bed.Eventually(t, stopSoon, "the container without its GPU is ended", func() error {
					state, err := sandbox.State(id)
					if err == nil && state == cri.ContainerState_CONTAINER_RUNNING {
						return errors.New("it runs")
					}
					return nil
				})
				t.Logf("it did not run %v after the plugin was connected again", took.Round(time.Millisecond))
			}

			// The kubelet starts it again, with what it was promised. A plugin
			// that was thawed this moment may still be asked by nobody: then
			// the guard refuses, and the kubelet tries once more.
			var again string
			bed.Eventually(t, stopSoon, "the container starts again", func() (err error) {
				if again, err = sandbox.Create("main", env); err != nil {
					return fmt.Errorf("create: %w", err)
				}
				if err = sandbox.Start(again); err != nil {
					return fmt.Errorf("start: %w", err)
				}
				return nil
			})
			view, err := sandbox.View(again)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Compare(view, gpu.Index); err != nil {
				t.Errorf("the container that was made again: %v", err)
			}
			sandbox.Remove(t)
		})
	}
	s.Kubelet.Thaw(t)
}

// testFreezes freezes the plugin around the creation of real pods, each time
// at another moment after the pod's sandbox is there.
func (s *suite) testFreezes(t *testing.T) {
	for _, delay := range []time.Duration{0, 10, 20, 30, 60} {
		delay *= time.Millisecond
		pod := s.Apply(t, bed.GPUPod("freeze", 1))
		s.WaitSandbox(t, pod)
		time.Sleep(delay) // The moment is what varies here.
		s.Plugin.Freeze(t)
		// Longer than NRI waits for a plugin, so that containerd drops it if
		// it is asked meanwhile.
		s.holdFor(t, 3*time.Second)
		s.Plugin.Thaw(t)
		took := bed.Eventually(t, 90*time.Second, "the pod runs with its GPU", func() error { return s.runsWithGPU(t, pod) })
		bed.Never(t, 2*time.Second, "the pod loses it again", func() error { return s.runsWithGPU(t, pod) })
		t.Logf("frozen %v after the sandbox: the pod ran with its GPU %v after the thaw", delay, took.Round(time.Millisecond))
		s.Remove(t, pod)
	}
}

// holdFor lets time pass while the plugin is frozen.
func (s *suite) holdFor(t *testing.T, d time.Duration) {
	t.Helper()
	bed.Never(t, d, "a program of the node ends", func() error {
		for _, p := range s.Processes() {
			if !p.Running() {
				return fmt.Errorf("%s ended", p.Name)
			}
		}
		return nil
	})
}

func (s *suite) runsWithGPU(t *testing.T, pod string) error {
	status, err := s.Status(pod)
	if err != nil {
		return err
	}
	c, _ := status.Container("main")
	if c.State.Running == nil {
		return fmt.Errorf("%v", status)
	}
	view, err := s.View(c)
	if err != nil {
		return err
	}
	return s.Compare(view, s.AssignedGPUs(t, pod, "main")...)
}

// testUnguarded: a kubelet that was restarted and that the advertiser has not
// found yet does not call PreStartContainer. A container that crashes just
// then is started without its GPU when the plugin is down too; it must not
// stay so once the plugin is back.
func (s *suite) testUnguarded(t *testing.T) {
	pod := s.Apply(t, bed.GPUPod("unguarded", 1))
	s.WaitRunning(t, pod)
	before := s.Look(t, pod, "main")
	s.Advertiser.Kill(t)
	s.Plugin.Kill(t)
	s.Kubelet.Terminate(t)
	s.Kubelet.Start(t)
	s.WaitKubelet(t)
	// It admits the pod anew, and rejects it when its container does not run then.
	s.WaitRunning(t, pod)
	s.KillContainer(t, before)
	s.WaitStatus(t, pod, "the container is started again, or an event says why not", func(status bed.Status) error {
		c, _ := status.Container("main")
		switch {
		case c.State.Running != nil && c.RestartCount > 0:
			t.Log("the kubelet started the container without its GPU")
			return nil
		case c.State.Waiting != nil && c.State.Waiting.Reason != "CrashLoopBackOff":
			t.Logf("the kubelet did not start the container: %s", c.State.Waiting.Message)
			return nil
		}
		return errors.New("not yet")
	})
	s.Plugin.Start(t)
	s.Advertiser.Start(t)
	took := bed.Eventually(t, 90*time.Second, "the pod runs with its GPU", func() error { return s.runsWithGPU(t, pod) })
	s.MustHave(t, pod, "main", before.GPUs...)
	t.Logf("the pod ran with its GPU again %v after the plugin's start", took.Round(time.Millisecond))
}
