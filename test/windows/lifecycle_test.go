//go:build e2e && windows

package windows

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/test/windows/bed"
)

// TestConcurrentContainers starts fifty containers concurrently.
func TestConcurrentContainers(t *testing.T) {
	t.Parallel()
	n := start(t, bed.Options{Name: "concurrent"})
	const count = 50
	var containers []bed.Container
	for i := range count {
		id := fmt.Sprintf("concurrent-%d", i)
		request := fmt.Sprint(i % 2)
		if i%5 == 0 {
			request = "none"
		}
		containers = append(containers, bed.Container{ID: id, Spec: n.SpecFile(t, id, bed.JSON(t, n.Visible(t, id, request))), Runtime: bed.Directx})
	}
	for i, err := range n.Client(t, "default", containers...) {
		id := containers[i].ID
		switch {
		case err != nil:
			t.Errorf("start %s: %v", id, err)
		case i%5 == 0:
			n.MustHave(t, id)
		default:
			n.MustHave(t, id, n.GPUs[i%2])
		}
	}
	tasks := n.Tasks(t, "default")
	maps.DeleteFunc(tasks, func(_, state string) bool { return state != "RUNNING" })
	if len(tasks) != count {
		t.Errorf("%d containers run, want %d", len(tasks), count)
	}
}

// TestRestart restarts containerd while tasks run.
func TestRestart(t *testing.T) {
	t.Parallel()
	start(t, bed.Options{Name: "restart"}).testRestart(t)
}

func (n node) testRestart(t *testing.T) {
	pod := n.Sandbox(t, bed.Directx, n.Name("restart-pod"))
	// run starts a container of the pod, with a GPU if containerd runs the shim for it.
	run := func(id string, gpu bed.GPU) {
		t.Helper()
		if n.SkipsShim() {
			n.MustRun(t, bed.Directx, id, n.ContainerSpec(t, pod, id, id))
			return
		}
		n.MustAllocate(t, pod, id, id, n.Record(t, bed.Display, gpu.Replica(0)), gpu)
	}
	app := n.Name("restart-app")
	run(app, n.GPUs[0])
	alone, plain := n.Name("restart-alone"), n.Name("restart-plain")
	for runtime, id := range map[string]string{bed.Directx: alone, n.Plain(): plain} {
		n.MustRun(t, runtime, id, n.Visible(t, id, "1"))
	}
	n.Kill()
	n.Start(t)
	tasks := n.Tasks(t, "default")
	for _, id := range []string{pod.Sandbox, app, alone, plain} {
		if tasks[id] != "RUNNING" || n.Created(t, id) != 1 {
			t.Errorf("after the restart task %s is %q and was created %d times, want RUNNING, once", id, tasks[id], n.Created(t, id))
		}
	}
	late := n.Name("restart-late")
	run(late, n.GPUs[1])
	for _, id := range []string{late, app, pod.Sandbox, alone, plain} {
		n.Delete(t, id)
	}
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
			if strings.Contains(p.Command, bed.DirectxShim) {
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
	if state, ok := n.Tasks(t, "default")[id]; ok {
		t.Errorf("containerd has a task %q for it", state)
	}
}
