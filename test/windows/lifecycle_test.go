//go:build e2e && linux

package windows

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"directx-nri/test/windows/bed"
)

// TestCrowd starts fifty containers side by side.
func TestCrowd(t *testing.T) {
	t.Parallel()
	inventory := bed.NewInventory("crowd")
	n := node{start(t, bed.Options{Name: "crowd", Inventory: inventory}), inventory.GPUs}
	const count = 50
	var containers []bed.Container
	for i := range count {
		id := fmt.Sprintf("crowd-%d", i)
		spec := n.Standalone(t, id)
		if i%5 != 0 { // Every fifth asks for nothing.
			spec.Process.Env = append(spec.Process.Env, fmt.Sprintf("DIRECTX_VISIBLE_DEVICES=%d", i%2))
		}
		containers = append(containers, bed.Container{ID: id, Spec: n.SpecFile(t, id, bed.JSON(t, spec)), Runtime: bed.Directx})
	}
	for i, a := range n.Client(t, "default", containers...) {
		if a.Error != "" {
			t.Errorf("start %s: %s", a.ID, a.Error)
			continue
		}
		if i%5 == 0 {
			n.mustHave(t, a.ID)
		} else {
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

// TestRestart ends containerd with tasks that run, and starts it again.
func TestRestart(t *testing.T) {
	t.Parallel()
	inventory := bed.NewInventory("restart")
	n := node{start(t, bed.Options{Name: "restart", Inventory: inventory}), inventory.GPUs}
	pod := n.sandbox(t, bed.Directx, "restart-pod")
	app := "restart-app"
	if err := n.allocated(t, pod, app, "app", n.Record(t, bed.Display, n.gpus[0].Replica(0))); err != nil {
		t.Fatal(err)
	}
	alone, plain := "restart-alone", "restart-plain"
	for runtime, id := range map[string]string{bed.Directx: alone, n.Plain(): plain} {
		spec := n.Standalone(t, id)
		spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES=1")
		n.MustRun(t, runtime, id, bed.JSON(t, spec))
	}
	n.Kill()
	n.Start(t)
	all := []string{pod.Sandbox, app, alone, plain}
	tasks := n.Tasks(t)
	for _, id := range all {
		if tasks[id] != "RUNNING" {
			t.Errorf("after containerd's restart task %s is %q, want RUNNING", id, tasks[id])
		}
		if created := n.Created(t, id); created != 1 {
			t.Errorf("container %s was created %d times, want once", id, created)
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

// TestKilled ends a start in its middle: nothing half started stays.
func TestKilled(t *testing.T) {
	t.Parallel()
	inventory := bed.NewInventory("killed")
	n := node{start(t, bed.Options{Name: "killed", Inventory: inventory}), inventory.GPUs}
	name := func(victim, when string) string { return victim + " " + when + " runhcs has answered" }
	moments := []string{"before", "after"}
	// One after the other: all containers of the node feel it.
	for _, when := range moments {
		t.Run(name("containerd", when), func(t *testing.T) { n.testKilled(t, when, "containerd") })
	}
	for _, when := range moments {
		for _, victim := range []string{"shim", "ctr"} {
			t.Run(name(victim, when), func(t *testing.T) {
				t.Parallel()
				n.testKilled(t, when, victim)
			})
		}
	}
}

func (n node) testKilled(t *testing.T, when, victim string) {
	id := "killed-" + when + "-" + victim
	spec := n.Standalone(t, id)
	spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES=all")
	release := n.Hang(t, when, id)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ctr := n.CtrCommand(ctx, "run", "--detach", "--null-io", "--runtime", bed.Directx, "--config", n.SpecFile(t, id, bed.JSON(t, spec)), id)
	if err := ctr.Start(); err != nil {
		t.Fatal(err)
	}
	bed.Eventually(t, "the start stands still", func() error {
		if !n.Hangs(id) {
			return errors.New("it does not")
		}
		return nil
	})
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
			t.Errorf("%d processes of ours belonged to the start, want 1", killed)
		}
	case "ctr":
		// As when a timeout of containerd's runs out: it ends the shim.
		cancel()
	case "containerd":
		n.Kill()
		// The start that nobody waits for any more comes to its end, and the
		// next containerd finds what it left.
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
	_ = ctr.Wait() // It fails one way or the other.
	n.mustLeaveNothing(t, id)
	if created := n.Created(t, id); created != 0 {
		t.Errorf("HCS was asked %d times for the container, want never", created)
	}
	if state, ok := n.Tasks(t)[id]; ok {
		t.Errorf("containerd has a task %q for it", state)
	}
}
