//go:build e2e && linux

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/test/bed"
)

// TestHandlerOfItsOwn starts only the pods of one runtime handler through the
// shim, a handler that `dxctl runtime configure` added, with no
// plugin on the node. This kubelet has no API server and so no RuntimeClass:
// its pods run by containerd's default handler, which is first another one and
// then that one.
func TestHandlerOfItsOwn(t *testing.T) {
	const handler = "gpus"
	n := bed.Start(t, bed.Options{
		NoKubelet: true, Shim: true, Replicas: 4, Inventory: bed.NewInventory(2, 0), Config: "injection: shim",
	})
	bed.MustContain(t, "what dxctl prints", n.ConfigureContainerd(t, "--add-handler="+handler), "kind: RuntimeClass", "handler: "+handler)
	n.Join(t)

	refused := n.Apply(t, bed.GPUPod("refused", 1))
	onlyInit := n.Apply(t, bed.Pod{
		Name:       "only-init",
		Init:       []bed.Container{{Name: "first", Display: 1, Script: "true"}},
		Containers: []bed.Container{{Name: "main"}},
	})
	plain := n.Apply(t, bed.GPUPod("plain", 0))
	bed.MustContain(t, "the event of a pod of another handler", n.WaitNotStarted(t, refused, "main", 0), allocation.InterlockMount)
	bed.MustContain(t, "the event of its init container", n.WaitNotStarted(t, onlyInit, "first", 0), allocation.InterlockMount)
	n.WaitRunning(t, plain)

	n.EditContainerd(t, `default_runtime_name = "runc"`, `default_runtime_name = "`+handler+`"`)
	served := n.Apply(t, bed.GPUPod("served", 2))
	n.SyncPods(t, refused, onlyInit)
	n.WaitRunning(t, refused, onlyInit, served, plain)
	n.CheckDevices(t)
}

// TestForeignHandler runs pods by a handler of another type than runc's, as Kata
// Containers and gVisor have. Those with a GPU are refused by the advertiser while the
// node has no other handler, and otherwise by the plugin.
func TestForeignHandler(t *testing.T) {
	const foreign = `runtime_type "io.containerd.foreign.v1", not io.containerd.runc.v2`
	n := bed.Start(t, bed.Options{Replicas: 4, Inventory: bed.NewInventory(1, 0)})
	shim := filepath.Join(filepath.Dir(n.ShimFile()), "containerd-shim-foreign-v1")
	bed.WriteFile(t, shim, "#!/bin/sh\nexec containerd-shim-runc-v2 \"$@\"\n", 0o755)
	n.EditContainerd(t, `"io.containerd.runc.v2"`, `"io.containerd.foreign.v1"`)
	bed.Eventually(t, 20*time.Second, "the plugin reports the handlers", func() error {
		if err := n.CheckPlugin(); err == nil || !strings.Contains(err.Error(), foreign) {
			return fmt.Errorf("it reports %w", err)
		}
		return nil
	})
	n.WaitOffered(t)
	refused, plain := n.Apply(t, bed.GPUPod("refused", 1)), n.Apply(t, bed.GPUPod("plain", 0))
	bed.MustContain(t, "the event", n.WaitNotStarted(t, refused, "main", 0), "the container cannot start with its GPU now", foreign)
	n.WaitRunning(t, plain)

	n.EditContainerd(t, `"io.containerd.foreign.v1"`, `"io.containerd.foreign.v1"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.other]
      runtime_type = "io.containerd.runc.v2"`)
	n.WaitPlugin(t)
	mark := n.Kubelet.Mark()
	n.SyncPods(t, refused)
	bed.MustContain(t, "the event", n.WaitNotStarted(t, refused, "main", mark), foreign+"; use a runtime class")

	n.EditContainerd(t, `"io.containerd.foreign.v1"`, `"io.containerd.runc.v2"`)
	n.SyncPods(t, refused)
	n.WaitRunning(t, refused)
	n.CheckDevices(t)
}

// TestCallsByContainerd counts how often each release of containerd runs the real shim
// of a container, and looks for errors about that in its log.
func TestCallsByContainerd(t *testing.T) {
	for _, version := range []string{containerd1, containerd2} {
		t.Run("containerd "+version, func(t *testing.T) {
			dir := t.TempDir()
			wrapper, log := filepath.Join(dir, "real-shim"), filepath.Join(dir, "log")
			bed.WriteFile(t, wrapper, "#!/bin/sh\necho \"$*\" >> "+log+"\nexec containerd-shim-runc-v2 \"$@\"\n", 0o755)
			n := bed.Start(t, bed.Options{
				NoKubelet: true, Shim: true, Inventory: bed.NewInventory(1, 0), Containerd2: version == containerd2,
				Config: "shim: {realShim: " + wrapper + "}\n",
			})
			n.CtrDetach(t, "counted", append([]string{"--runtime", bed.DirectX}, annotation("0")...)...)
			n.CtrRemove(t, "counted")
			counts := map[string]int{}
			for line := range strings.Lines(string(bed.ReadFile(t, log))) {
				fields := strings.Fields(line)
				counts[fields[len(fields)-1]]++
			}
			// containerd 2.2 and later asks for the shim's features, once for each task.
			if counts["start"] != 1 || counts["delete"] > 1 || counts["-info"] > 1 || len(counts) > 3 {
				t.Errorf("calls %v", counts)
			}
			for line := range strings.Lines(n.Containerd.Log(0)) {
				if strings.Contains(line, "level=error") && (strings.Contains(line, "info") || strings.Contains(line, "shim")) {
					t.Error(line)
				}
			}
		})
	}
}
