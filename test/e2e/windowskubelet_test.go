//go:build e2e && linux

package e2e

import (
	"testing"

	"directx-nri/test/bed"
)

// TestWindowsKubelet runs the parts of [TestNode] under a kubelet that allocates when it
// creates a container, as on Windows, with the runtime shim, which serves pods there.
func TestWindowsKubelet(t *testing.T) {
	s := start(t, bed.Options{
		WindowsKubelet: true, Shim: true, PodsByShim: true, NRIOff: true,
		Replicas: 4, Inventory: bed.NewInventory(2, 1), Config: "servedBy: shim\n",
	})
	t.Run("1 a pod gets its device", s.testDevices)
	t.Run("2 GPUs are shared fairly", s.testSharing)
	t.Run("3 restarts change nothing", s.testRestarts)
	t.Run("5 only an allocation grants a device", s.testTokens)
	t.Run("6 GPUs come and go", s.testHotplug)
	t.Run("7 records survive", s.testRecords)
}
