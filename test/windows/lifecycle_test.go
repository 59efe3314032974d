//go:build e2e && windows

package windows

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/directx-nri/directx-nri/test/windows/bed"
)

// testConcurrent starts containers of a pod concurrently.
func (n node) testConcurrent(t *testing.T) {
	pod := n.RunPod(t, n.Name("many"))
	var all sync.WaitGroup
	for i := range 24 {
		c := n.NewContainer(fmt.Sprintf("none-%d", i))
		var want []bed.GPU
		if i%3 != 0 {
			gpu := n.GPUs[i%2]
			c, want = n.NewAllocated(fmt.Sprintf("gpu-%d", i), n.Record(t, gpu.Replica(100+i))), []bed.GPU{gpu}
		}
		all.Go(func() {
			id, err := n.StartContainer(t, pod, c)
			if err != nil {
				t.Errorf("start %s: %v", c.GetMetadata().GetName(), err)
				return
			}
			n.MustHave(t, id, want...)
		})
	}
	all.Wait()
}

// testRestart restarts containerd while containers run.
func (n node) testRestart(t *testing.T, skipsShim bool) {
	pod := n.RunPod(t, n.Name("restart"))
	// run starts a container of the pod, with a GPU if containerd runs the shim for it.
	run := func(name string, gpu bed.GPU) string {
		t.Helper()
		if skipsShim {
			return n.MustStartContainer(t, pod, n.NewContainer(name))
		}
		return n.MustStartContainer(t, pod, n.NewAllocated(name, n.Record(t, gpu.Replica(30))), gpu)
	}
	app, alone := run("app", n.GPUs[0]), n.Name("restart-alone")
	n.MustRunImage(t, alone, bed.Visible("1")...)
	n.Kill()
	n.Start(t)
	n.mustRun(t, bed.CRINamespace, pod.ID, app)
	n.mustRun(t, bed.DefaultNamespace, alone)
	n.RemoveContainer(t, run("late", n.GPUs[1]))
	n.RemoveContainer(t, app)
	n.Delete(t, alone)
}

// mustRun fails the test unless containers run that were created once.
func (n node) mustRun(t *testing.T, namespace string, ids ...string) {
	t.Helper()
	states := n.Tasks(t, namespace)
	for _, id := range ids {
		if created := n.Created(t, id); states[id] != "RUNNING" || created != 1 {
			t.Errorf("task %s is %q and was created %d times, want RUNNING, once", id, states[id], created)
		}
	}
}

// awaitState waits until the task of a standalone container has a state.
func (n node) awaitState(t *testing.T, id, state string) {
	t.Helper()
	bed.Eventually(t, "the task "+id+" is "+state, func() error {
		if got := n.Tasks(t, bed.DefaultNamespace)[id]; got != state {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
}

// TestKilled interrupts a start: nothing of it is left.
func TestKilled(t *testing.T) {
	t.Parallel()
	n := start(t, bed.Options{Name: "killed"})
	for _, when := range []string{"before", "after"} {
		// It affects all containers of the node.
		t.Run("containerd "+when+" runhcs' answer", func(t *testing.T) { n.testKilled(t, when, "containerd") })
	}
	for _, when := range []string{"before", "after"} {
		for _, program := range []string{"shim", "ctr"} {
			t.Run(program+" "+when+" runhcs' answer", func(t *testing.T) {
				t.Parallel()
				n.testKilled(t, when, program)
			})
		}
	}
}

func (n node) testKilled(t *testing.T, when, program string) {
	id := "killed-" + when + "-" + program
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	release, ended := n.StartHanging(ctx, t, when, id, "all")
	switch program {
	case "shim":
		killed := 0
		for _, p := range n.Processes(id) {
			if strings.Contains(p.Command, n.Shim()) {
				p.Kill(t)
				killed++
			}
		}
		if killed != 1 {
			t.Errorf("the start had %d processes of the shim, want 1", killed)
		}
	case "ctr":
		// containerd kills the shim, as after a timeout.
		cancel()
	case "containerd":
		n.Kill()
		// The start ends without containerd, which finds the remains when it starts.
		release()
		bed.Eventually(t, "the start ends", func() error {
			for _, p := range n.Processes(id) {
				if !strings.Contains(p.Command, " serve ") {
					return fmt.Errorf("it runs: %s", p.Command)
				}
			}
			return nil
		})
		n.Start(t)
	}
	if err := <-ended; err == nil {
		t.Error("ctr has not failed")
	}
	n.MustLeaveNothing(t, id)
	if created := n.Created(t, id); n.Doubled && created != 0 {
		t.Errorf("the container was created %d times", created)
	}
	if state, ok := n.Tasks(t, bed.DefaultNamespace)[id]; ok {
		t.Errorf("containerd has a task %q for it", state)
	}
}
