package main

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// enforceModes makes file modes apply to the test even if it runs as root: it drops the
// capabilities of the test's thread, which ends with the test. Other goroutines are not affected.
func enforceModes(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // Never unlocked, so that the thread is not reused.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	testutil.NoError(t, unix.Capget(&header, &sets[0]))
	sets[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	testutil.NoError(t, unix.Capset(&header, &sets[0]))
}

// TestSpecOfDiscoveredGPUs: a preview has the GPUs that the shim reads, whatever the driver says now.
func TestSpecOfDiscoveredGPUs(t *testing.T) {
	b := newSpecNode(t)
	gpu := discovery.Device{InstanceID: "A", SupportsDisplay: true, DeviceNodes: []discovery.DeviceNode{{Path: "/dev/null", ContainerPath: "/dev/null"}}}
	testutil.NoError(t, node.Discovered(b.state).Write([]discovery.Device{gpu}))
	out, _, err := runCommand(t.Context(), t, `{"linux":{}}`, "spec", "-", "--gpus", "0", "--state-dir", b.state)
	if err != nil || !strings.Contains(out, "/dev/null") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestAllocationsWithoutPermission(t *testing.T) {
	t.Parallel()
	b := newSpecNode(t)
	b.record(t, "GPU")
	allocations := paths.Allocations(b.state)
	testutil.NoError(t, os.Chmod(allocations, 0))
	t.Cleanup(func() { _ = os.Chmod(allocations, 0o700) })
	enforceModes(t)
	if _, _, err := runAllocations(t, b.state); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("allocations: %v", err)
	}
}
