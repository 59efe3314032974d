//go:build e2e && linux

// Package e2e holds the end-to-end suite: pods on a node of real parts, as
// package bed runs one.
package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

func TestMain(m *testing.M) { os.Exit(bed.NodeSuite().Main(m)) }

// TestNode runs what can share a node: two GPUs for display and one for compute, four replicas each. The names of its
// parts are what must hold, also with the newest containerd, kubelet and runc, and with the kubelet of Windows up to
// Kubernetes 1.37, which allocates when it creates a container.
func TestNode(t *testing.T) {
	for name, options := range map[string]bed.Options{"containerd 1.7": {}, "containerd 2.x": {Containerd2: true}, "Windows": {WindowsKubelet: true}} {
		t.Run(name, func(t *testing.T) {
			options.Replicas, options.Inventory = 4, bed.NewInventory(2, 1)
			s := start(t, options)
			t.Run("a pod gets its device", s.testDevices)
			t.Run("GPUs are shared fairly", s.testSharing)
			t.Run("restarts change nothing", s.testRestarts)
			t.Run("no container runs without its GPU", s.testPluginDown)
			t.Run("an allocation grants what it is for", s.testAllocated)
			t.Run("GPUs come and go", s.testHotplug)
			s.Part(t, "a damaged record starts nothing, and the error names the file", s.testDamage)
		})
	}
}

// suite is a node that the parts of a test share.
type suite struct {
	*bed.Node
	client    *bed.Client // of the namespace of standalone containers
	allocated int         // how many allocations the test made
}

// start starts a node.
func start(t *testing.T, options bed.Options) *suite {
	t.Helper()
	n := bed.Start(t, options)
	return &suite{Node: n, client: n.Client(t)}
}

// call runs a command and returns its exit status and output.
func call(t testing.TB, command *exec.Cmd) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	err := command.Run()
	if exit := (&exec.ExitError{}); !errors.As(err, &exit) {
		testutil.NoError(t, err)
	}
	return command.ProcessState.ExitCode(), out.String(), errs.String()
}
