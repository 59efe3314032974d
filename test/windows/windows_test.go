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

// releases are the versions of containerd and runhcs that the suite runs with.
func releases() map[string]bed.Release {
	return map[string]bed.Release{"1.7": "", "2.0": bed.AKS2, "newest": bed.Newest}
}

// skipsShim reports whether containerd runs no shim for a pod's containers: 2.0.0 to 2.0.5
// connect to that of the sandbox.
func skipsShim(r bed.Release) bool { return r == bed.AKS2 }
