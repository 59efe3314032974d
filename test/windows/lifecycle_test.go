//go:build e2e && linux

package windows

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"directx-nri/test/windows/bed"
)

// TestCrowd starts fifty containers concurrently.
func TestCrowd(t *testing.T) {
	t.Parallel()
	n := start(t, bed.Options{Name: "crowd"})
	const count = 50
	var containers []bed.Container
	for i := range count {
		id := fmt.Sprintf("crowd-%d", i)
		spec := bed.JSON(t, n.Standalone(t, id))
		if i%5 != 0 { // Every fifth has no request.
			spec = n.visible(t, id, fmt.Sprint(i%2))
		}
		containers = append(containers, bed.Container{ID: id, Spec: n.SpecFile(t, id, spec), Runtime: bed.Directx})
	}
	for i, a := range n.Client(t, "default", containers...) {
		switch {
		case a.Error != "":
			t.Errorf("start %s: %s", a.ID, a.Error)
		case i%5 == 0:
			n.mustHave(t, a.ID)
		default:
			n.mustHave(t, a.ID, n.gpus[i%2])
		}
	}
	running := 0
	for _, state := range n.Tasks(t) {
		if state == "RUNNING" {
			running++
		}
	}
	if running != count {
		t.Errorf("%d containers run, want %d", running, count)
	}
}

// TestRestart restarts containerd while tasks run.
func TestRestart(t *testing.T) {
	t.Parallel()
	n := start(t, bed.Options{Name: "restart"})
	pod := n.sandbox(t, bed.Directx, "restart-pod")
	app := "restart-app"
	if err := n.allocated(t, pod, app, "app", n.Record(t, bed.Display, n.gpus[0].Replica(0))); err != nil {
		t.Fatal(err)
	}
	alone, plain := "restart-alone", "restart-plain"
	for runtime, id := range map[string]string{bed.Directx: alone, n.Plain(): plain} {
		n.MustRun(t, runtime, id, n.visible(t, id, "1"))
	}
	n.Kill()
	n.Start(t)
	tasks := n.Tasks(t)
	for _, id := range []string{pod.Sandbox, app, alone, plain} {
		if tasks[id] != "RUNNING" || n.Created(t, id) != 1 {
			t.Errorf("after the restart task %s is %q and was created %d times, want RUNNING, once", id, tasks[id], n.Created(t, id))
		}
	}
	late := "restart-late"
	if err := n.allocated(t, pod, late, "late", n.Record(t, bed.Display, n.gpus[1].Replica(0))); err != nil {
		t.Errorf("a container of the same pod after the restart: %v", err)
	} else {
		n.mustHave(t, late, n.gpus[1])
		n.Delete(t, late)
	}
	for _, id := range []string{app, pod.Sandbox, alone, plain} {
		n.Delete(t, id)
		n.mustLeaveNothing(t, id)
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
		for _, victim := range []string{"shim", "ctr"} {
			t.Run(victim+" "+when+" runhcs' answer", func(t *testing.T) {
				t.Parallel()
				n.testKilled(t, when, victim)
			})
		}
	}
}

func (n node) testKilled(t *testing.T, when, victim string) {
	id := "killed-" + when + "-" + victim
	release := n.Hang(t, when, id)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ctr := n.CtrCommand(ctx, n.RunArgs(t, bed.Directx, id, n.visible(t, id, "all"))...)
	if err := ctr.Start(); err != nil {
		t.Fatal(err)
	}
	n.AwaitHang(t, id)
	switch victim {
	case "shim":
		killed := 0
		for _, p := range n.Processes(id) {
			if strings.Contains(p.Command, directxShim) {
				bed.KillProcess(t, p)
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
	_ = ctr.Wait() // It fails.
	n.mustLeaveNothing(t, id)
	if created := n.Created(t, id); created != 0 {
		t.Errorf("the container was created %d times", created)
	}
	if state, ok := n.Tasks(t)[id]; ok {
		t.Errorf("containerd has a task %q for it", state)
	}
}
