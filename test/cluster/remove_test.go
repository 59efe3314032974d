//go:build e2e && linux

package cluster

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// testRestore begins with a node that has the shim, and leaves one that has
// nothing of ours.
func (s *suite) testRestore(t *testing.T) {
	s.remove(t, holders()...)
	s.helmUpgrade(t, "--reuse-values", "--set", "restore=true")
	s.rolledOut(t, daemonSet)
	s.Helm(t, "uninstall", release, "--namespace", namespace, "--wait")
	s.Kubectl(t, "delete", "--wait", "--filename", manifests+"/namespace.yaml")
	s.mustBeAsBefore(t)
}

func (s *suite) testRestoreManifest(t *testing.T) {
	s.install(t)
	s.mustGiveGPUs(t, display)
	s.Helm(t, "uninstall", release, "--namespace", namespace, "--wait")
	// Helm waits for what it has made, and not for the DaemonSet's pods.
	s.Kubectl(t, "wait", "pod", "--for=delete", "--selector", "app.kubernetes.io/instance="+release, "--namespace", namespace, "--timeout", timeout.String())
	s.applyWithImage(t, manifests+"/restore-linux.yaml")
	s.rolledOut(t, daemonSet)
	s.Kubectl(t, "delete", "--wait", "--filename", manifests+"/restore-linux.yaml")
	s.Kubectl(t, "delete", "--wait", "--filename", manifests+"/namespace.yaml")
	s.mustBeAsBefore(t)
}

// mustBeAsBefore fails the test unless the node is as it was before anything was
// installed, and works.
func (s *suite) mustBeAsBefore(t *testing.T) {
	t.Helper()
	if diff := cmp.Diff(s.before, s.Files(t)); diff != "" {
		t.Errorf("the node's files are not what they were (-before +after):\n%s", diff)
	}
	s.WaitContainerd(t)
	s.waitOffered(t, map[string]int{display: 0, compute: 0, t4: 0})
	s.Apply(t, pod("after", forever, nil))
	s.waitRunning(t, "after")
	s.remove(t, "after")
	s.mustGoOn(t, s.bystander)
}
