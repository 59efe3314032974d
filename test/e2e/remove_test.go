//go:build e2e && linux

package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"directx-nri/internal/allocation"
	"directx-nri/test/bed"
)

// TestRemoveUnderGPU removes the product under a running container with a GPU. The
// container goes on, and does not start again without its GPU.
func TestRemoveUnderGPU(t *testing.T) {
	n := bed.Start(t, bed.Options{Replicas: 2, Inventory: bed.NewInventory(1, 0), Shim: true, HandlerApart: true})
	pod := n.Apply(t, bed.GPUPod("held", 1))
	n.WaitRunning(t, pod)
	held := n.MustHave(t, pod, "main", 0)

	flags := []string{"--config", n.ContainerdConfig(), "--cri-socket", n.Address()}
	uninstall := append([]string{"uninstall", "--purge", "--from", n.Dir + "/shim", "--runtime-dir", n.RuntimeDir}, flags...)
	// uninstall removes the shim, which no container of this node uses.
	for _, args := range [][]string{append([]string{"unconfigure"}, flags...), uninstall} {
		command := n.DxctlCommand("runtime", args...)
		command.Args = append([]string{command.Args[0], "runtime", args[0], "--state-dir", n.StateDir}, args[1:]...)
		out, err := command.CombinedOutput()
		refused := err != nil && strings.Contains(string(out), pod+"/main") && strings.Contains(string(out), "--force")
		if idle := args[0] == "unconfigure" && strings.Contains(string(out), "no changes to undo"); !refused && !idle {
			t.Errorf("%v without --force: %v\n%s", args, err, out)
		}
		forced := exec.Command(command.Path, append(command.Args[1:], "--force")...)
		if out, err := forced.CombinedOutput(); err != nil {
			t.Fatalf("%v with --force: %v\n%s", args, err, out)
		}
	}
	n.Plugin.Terminate(t)
	n.Advertiser.Terminate(t)
	n.RestartContainerd(t)
	n.Kubelet.Terminate(t)
	n.Kubelet.Start(t)
	n.WaitKubelet(t)
	if again := n.Look(t, pod, "main"); again.ID != held.ID {
		t.Errorf("the container was replaced: %s, and was %s", again.ID, held.ID)
	}

	since := n.Kubelet.Mark()
	n.KillContainer(t, held)
	n.Nudge(t, pod)
	mustContain(t, "the event of the container", n.WaitNotStarted(t, pod, "main", since), allocation.InterlockMount)
}
