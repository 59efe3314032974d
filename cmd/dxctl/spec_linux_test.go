package main

import (
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// TestSpecOfDiscoveredGPUs: a preview has the GPUs that the shim reads, whatever the driver says now.
func TestSpecOfDiscoveredGPUs(t *testing.T) {
	t.Parallel()
	b := newSpecNode(t)
	gpu := discovery.Device{InstanceID: "A", SupportsDisplay: true, DeviceNodes: []discovery.DeviceNode{{Path: "/dev/null", ContainerPath: "/dev/null"}}}
	testutil.NoError(t, node.Discovered(b.state).Write([]discovery.Device{gpu}))
	out, _, err := runCommand(t.Context(), t, `{"linux":{}}`, "spec", "-", "--gpus", "0", "--assume-files", "--state-dir", b.state)
	if err != nil || !strings.Contains(out, "/dev/null") {
		t.Errorf("%v: %s", err, out)
	}
}
