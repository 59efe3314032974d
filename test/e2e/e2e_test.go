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

// TestNode runs what can share a node: two GPUs for display and one for
// compute, four replicas each. The names of its parts are what must hold.
func TestNode(t *testing.T) {
	s := start(t, bed.Options{Replicas: 4, Inventory: bed.NewInventory(2, 1)})
	t.Run("1 a pod gets its device", s.testDevices)
	t.Run("2 GPUs are shared fairly", s.testSharing)
	t.Run("3 restarts change nothing", s.testRestarts)
	t.Run("4 no container runs without its GPU", s.testPluginDown)
	t.Run("5 an allocation grants what it is for", s.testAllocated)
	t.Run("6 GPUs come and go", s.testHotplug)
	t.Run("7 records survive", s.testRecords)
}

// TestNewest has the main job with containerd 2 and the newest kubelet and runc, as
// TestInterlock has the interlock.
func TestNewest(t *testing.T) {
	s := start(t, bed.Options{Replicas: 4, Inventory: bed.NewInventory(2, 1), Containerd2: true})
	t.Run("a pod gets its device", s.testDevices)
	s.Part(t, "a restart changes nothing", func(t *testing.T) {
		pod := s.RunPod(t, bed.GPUPod("long", 2))
		before := s.Look(t, pod, "main")
		s.Restart(t, s.Processes()...)
		s.WaitReady(t)
		s.WaitRunning(t, pod) // A kubelet that was restarted has to find it.
		if now := s.Look(t, pod, "main"); now.ID != before.ID || now.PID != before.PID {
			t.Errorf("container %s with process %d is now %s with %d", before.ID, before.PID, now.ID, now.PID)
		}
		s.crash(t, pod)
		s.RunPod(t, bed.GPUPod("new", 1))
	})
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
	return &suite{Node: n, client: n.Client(t, bed.DefaultNamespace)}
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
