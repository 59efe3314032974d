//go:build e2e && linux

package cluster

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"directx-nri/test/bed"
)

func TestMain(m *testing.M) {
	os.Exit(bed.Ground{
		Dirs: []bed.Dir{
			{Path: "/etc", Copy: true}, {Path: "/run"}, {Path: binDir}, {Path: "/var/lib"}, {Path: "/var/log"},
			{Path: "/opt/containerd"}, {Path: "/opt/nri"}, // Not /opt, which may have Go.
		},
		Network: []netip.Addr{netip.MustParseAddr(nodeAddress)},
		Check:   checkParts,
	}.Main(m))
}

// checkParts returns an error if a program is missing on this machine.
func checkParts(p bed.Parts) error {
	if err := p.CheckNode(); err != nil {
		return err
	}
	for _, name := range []string{etcd, apiServer, controllerManager, scheduler, kubectl, helm} {
		if err := p.CheckStock(name, "cluster"); err != nil {
			return err
		}
	}
	for _, name := range []string{"bridge", "host-local", "loopback"} {
		if _, err := os.Stat(filepath.Join(cniPlugins, name)); err != nil {
			return fmt.Errorf("missing CNI plugin: run test/parts/build.sh cluster as root, or install the package containernetworking-plugins (%w)", err)
		}
	}
	return nil
}

// TestCluster takes one cluster through the life of a release. Each part continues with
// the cluster as the one before left it.
func TestCluster(t *testing.T) {
	s := newSuite(t)
	s.run(t, "1 a node without a GPU is left as it is until it has one", s.testNoGPU)
	s.run(t, "2 the chart makes a node offer its GPUs", s.testInstall)
	s.run(t, "3 the examples print the expected output", s.testExamples)
	s.run(t, "4 a pod waits for a free GPU", s.testPending)
	s.run(t, "5 a pod does not start without its GPU", s.testRefused)
	s.run(t, "6 a changed configuration does not affect running pods", s.testConfigChange)
	s.run(t, "7 an invalid configuration has no effect", s.testBadConfig)
	s.run(t, "8 the shim is installed without affecting running pods", s.testShim)
	s.run(t, "9 an upgrade and a rollback do not affect running pods", s.testRollback)
	s.run(t, "10 a node's label selects its configuration", s.testPools)
	s.run(t, "11 restore removes everything", s.testRestore)
	s.run(t, "12 the restore manifest removes everything after helm uninstall", s.testRestoreManifest)
	s.run(t, "13 Windows nodes are selected by build and pool", s.testWindows)
}
