//go:build e2e && windows

// Package windows has the suite for Windows nodes: the runtime shim between the real
// containerd.exe and the real containerd-shim-runhcs-v1.exe, as package bed runs them.
//
// Under Wine, with ../../Makefile's target e2e-windows, doubles of Windows' libraries
// record what runhcs requests of the Host Compute Service, and report hardware. On Windows
// itself, run it as an administrator, with containerd in its usual directory, and
// kubelet.exe in C:\k for TestKubelet:
//
//	go test -tags e2e -v ./test/windows
//
// The containers then run in the real Host Compute Service, and the tests check what the
// real shim was started with. The GPUs are those of an inventory, and the launcher removes
// them before the real shim starts, except in the tests of the machine's own GPUs. A test
// that needs a double is skipped.
package windows

import (
	"os"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/test/windows/bed"
)

var machine *bed.Machine

func TestMain(m *testing.M) { os.Exit(bed.Main(m, &machine)) }

// node is a node with the suite's tests.
type node struct{ *bed.Node }

// start returns a node for the test and its subtests.
func start(t *testing.T, options bed.Options) node {
	t.Helper()
	return node{machine.StartNode(t, options)}
}

type part struct {
	name string
	run  func(*testing.T)
}

// parallel runs the parts concurrently.
func parallel(t *testing.T, parts ...part) {
	for _, part := range parts {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			part.run(t)
		})
	}
}

// TestNode has the tests that share a node with containerd 1.7.35 and its version of
// runhcs.
func TestNode(t *testing.T) {
	t.Parallel()
	n := start(t, bed.Options{Name: "main"})
	n.ImportImage(t)
	parallel(t,
		part{"the main chain", n.testChain},
		part{"containers of pods", n.testPods},
		part{"standalone containers", n.testStandalone},
		part{"refused containers", n.testRefused},
		part{"containers without a request", n.testUntouched},
		part{"flags of dxctl", n.testFlags},
	)
}

// TestVersions runs the main chain with other releases, and restarts their containerd.
func TestVersions(t *testing.T) {
	t.Parallel()
	for _, options := range []bed.Options{
		{Name: "aks1", Release: bed.AKS1},
		{Name: "aks2", Release: bed.AKS2},
		{Name: "eks", Release: bed.EKS},
		{Name: "newest", Release: bed.Newest},
	} {
		t.Run(options.Name, func(t *testing.T) {
			t.Parallel()
			n := start(t, options)
			t.Run("the main chain", n.testChain)
			t.Run("a restart", n.testRestart)
			if strings.Contains(string(bed.ReadFile(t, n.Path("containerd.log"))), "maybe created from v1.x") {
				t.Error("containerd did not find a pod's sandbox")
			}
		})
	}
}

// TestFeatures counts the runs of the real shim under containerd 2.4, which asks a shim for
// the runtime's features before each task. runhcs does not support that; containerd itself
// asks it for its handlers when it starts.
func TestFeatures(t *testing.T) {
	t.Parallel()
	n := start(t, bed.Options{Name: "features", Release: bed.Newest})
	run := func(id string) (asked int) {
		n.MustRun(t, bed.Directx, id, n.Visible(t, id, "all"))
		n.Delete(t, id)
		if calls := n.ShimCalls(t, id); len(calls) == 0 || len(calls) > 2 {
			t.Errorf("runhcs was run %d times: %q", len(calls), calls)
		}
		return len(n.ShimCalls(t, ""))
	}
	if first, second := run(n.Name("first")), run(n.Name("second")); second > first {
		t.Errorf("runhcs was asked %d times for a container", second-first)
	}
	for line := range strings.Lines(string(bed.ReadFile(t, n.Path("containerd.log")))) {
		// Warnings quote the log of runhcs.
		if fields := strings.Fields(line); len(fields) > 1 && fields[1] == "level=error" && strings.Contains(line, "directx") {
			t.Error(line)
		}
	}
}

// both starts a container by the shim with the name id, and by runhcs alone with the name
// plain, and compares what the real shim and HCS got.
func (n node) both(t *testing.T, id, plain string, start func(runtime, id string) error) {
	t.Helper()
	for runtime, id := range map[string]string{bed.Directx: id, n.Plain(): plain} {
		if err := start(runtime, id); err != nil {
			t.Fatalf("start %s: %v", id, err)
		}
	}
	n.MustEqualPlain(t, id, plain)
}
