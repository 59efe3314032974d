//go:build e2e && linux

package cluster

import (
	"os"
	"testing"

	"directx-nri/test/cluster/bed"
)

func TestMain(m *testing.M) { os.Exit(bed.Main(m)) }

// TestCluster takes one cluster through the chart's life. Its parts build on each
// other, in this order; their names are what must hold.
func TestCluster(t *testing.T) {
	s := newSuite(t)
	s.run(t, "1 the chart makes a node offer its GPUs", s.testInstall)
	s.run(t, "2 the examples print what they should", s.testExamples)
	s.run(t, "3 a pod waits for its turn", s.testPending)
	s.run(t, "4 a pod without its GPU is refused in words", s.testRefused)
	s.run(t, "5 a new configuration is taken up under running pods", s.testConfigChange)
	s.run(t, "6 a bad configuration changes nothing", s.testBadConfig)
	s.run(t, "7 a new image comes under running pods", s.testNewImage)
	s.run(t, "8 the shim comes under running pods", s.testShim)
	s.run(t, "9 a rollback takes image and configuration back under running pods", s.testRollback)
	s.run(t, "10 a node's label decides on its configuration", s.testPools)
	s.run(t, "11 restore leaves nothing", s.testRestore)
	s.run(t, "12 the restore manifest leaves nothing after a bare uninstall", s.testRestoreManifest)
	s.run(t, "13 Windows nodes are told apart by their build", s.testWindows)
}
