//go:build e2e && linux

// Package e2e holds the end-to-end suite: pods on a node of real parts, as
// package bed runs one.
package e2e

import (
	"os"
	"strings"
	"testing"

	"directx-nri/test/bed"
)

func TestMain(m *testing.M) { os.Exit(bed.Main(m)) }

// TestNode runs what can share a node: two GPUs for display and one for
// compute, four replicas each. The names of its parts are what must hold.
func TestNode(t *testing.T) {
	s := &suite{inventory: bed.NewInventory(2, 1)}
	s.Node = bed.Start(t, bed.Options{Replicas: 4, Inventory: s.inventory})
	t.Run("1 a pod gets its device", s.testDevices)
	t.Run("2 GPUs are shared fairly", s.testSharing)
	t.Run("3 restarts change nothing", s.testRestarts)
	t.Run("4 no container runs without its GPU", s.testPluginAway)
	t.Run("5 only an allocation grants a device", s.testTokens)
	t.Run("6 GPUs come and go", s.testHotplug)
	t.Run("7 records survive", s.testRecords)
	for _, p := range []*bed.Process{s.Plugin, s.Advertiser} {
		for _, sign := range []string{"panic:", "DATA RACE"} {
			if strings.Contains(p.Log(0), sign) {
				t.Errorf("the log of %s has %q in it\n%s", p.Name, sign, p.Tail(60))
			}
		}
	}
}

// suite is the node that the parts of TestNode share.
type suite struct {
	*bed.Node
	inventory *bed.Inventory
}

// run runs one test. After it every running container must have what the kubelet
// assigned to it, and every program of the node runs again.
func (s *suite) run(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) {
		// Before the cleanup that removes pods, which needs a working node.
		defer func() {
			if t.Failed() {
				s.DumpLogs(t)
			}
			s.Recover(t, s.inventory)
		}()
		test(t)
		s.CheckDevices(t)
	})
}

// mustContain fails the test unless text names every one of parts.
func mustContain(t *testing.T, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(strings.ToLower(text), strings.ToLower(part)) {
			t.Errorf("%s does not say %q: %s", what, part, text)
		}
	}
	t.Logf("%s: %s", what, text)
}
