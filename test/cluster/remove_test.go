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
	s.holders = nil
	s.helmUpgrade(t, "--reuse-values", "--set", "restore=true")
	s.rolledOut(t, daemonSet)
	s.Helm(t, "uninstall", release, "--namespace", namespace, "--wait")
	s.waitPodsGone(t)
	s.mustBeAsBefore(t)
}

func (s *suite) testRestoreManifest(t *testing.T) {
	s.install(t)
	s.mustGiveGPUs(t, display)
	s.Helm(t, "uninstall", release, "--namespace", namespace, "--wait")
	s.waitPodsGone(t)
	s.applyWithImage(t, manifests+"/restore-linux.yaml")
	s.rolledOut(t, daemonSet)
	s.Kubectl(t, "delete", "--wait", "--filename", manifests+"/restore-linux.yaml")
	s.waitPodsGone(t)
	s.mustBeAsBefore(t)
}

// waitPodsGone waits until no pod of ours is left. Helm waits for what it has made,
// and not for the DaemonSet's pods.
func (s *suite) waitPodsGone(t *testing.T) {
	t.Helper()
	s.Kubectl(t, "wait", "pod", "--for=delete", "--all", "--namespace", namespace, "--timeout", timeout.String())
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
}
