//go:build e2e && linux

package e2e

import (
	"path/filepath"
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
	before := n.MustHave(t, pod, "main", 0)

	uninstall := []string{
		"uninstall", "--state-dir", n.StateDir, "--purge", "--config", n.ContainerdConfig(), "--cri-socket", n.Address(),
		"--from", filepath.Dir(n.ShimFile()), "--runtime-dir", n.RuntimeDir,
	}
	dxctl := func(args ...string) (string, error) {
		out, err := n.DxctlCommand("runtime", args...).CombinedOutput()
		return string(out), err
	}
	if out, err := dxctl(uninstall...); err == nil || !strings.Contains(out, "default/"+pod+"-"+bed.Name+"/main") || !strings.Contains(out, "--force") {
		t.Errorf("without --force: %v\n%s", err, out)
	}
	n.Advertiser.Kill(t)
	n.Plugin.Kill(t)
	if out, err := dxctl(append(uninstall, "--force")...); err != nil || !strings.Contains(out, "removed "+n.ShimFile()) {
		t.Fatalf("with --force: %v\n%s", err, out)
	}

	// A restarted kubelet does not call PreStartContainer.
	n.Kubelet.Terminate(t)
	n.Kubelet.Start(t)
	n.WaitKubelet(t)
	n.WaitRunning(t, pod)
	mark := n.Kubelet.Mark()
	n.KillContainer(t, before)
	mustContain(t, "the event of the container", n.WaitNotStarted(t, pod, "main", mark), allocation.InterlockMount)
	n.MustNotRun(t, pod)
}
