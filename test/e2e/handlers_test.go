//go:build e2e && linux

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/test/bed"
)

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
