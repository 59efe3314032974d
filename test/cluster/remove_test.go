//go:build e2e && linux

package cluster

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/test/bed"
)

// testRestore removes everything from a node with the shim.
func (s *suite) testRestore(t *testing.T) {
	s.remove(t, holders()...)
	s.holders = nil
	s.helmUpgrade(t, "--reuse-values", "--set", "restore=true")
	s.rolledOut(t, daemonSet)
	s.uninstall(t)
	s.mustBeRestored(t)
}

// testRestoreManifest removes what testUpgrade has left.
func (s *suite) testRestoreManifest(t *testing.T) {
	s.uninstall(t)
	const manifest = manifests + "/restore-linux.yaml"
	imageLine := regexp.MustCompile(`(?m)^(\s*image: ).*$`)
	s.apply(t, imageLine.ReplaceAllString(mustRead(t, filepath.Join(s.parts.Root, manifest)), "${1}"+repository+":"+s.older.version))
	s.rolledOut(t, daemonSet)
	s.kubectl(t, "delete", "--wait", "--filename", manifest)
	s.waitPodsGone(t)
	s.mustBeRestored(t)
}

func (s *suite) uninstall(t *testing.T) {
	t.Helper()
	s.helm(t, "uninstall", release, "--namespace", namespace, "--wait")
	s.waitPodsGone(t)
}

// waitPodsGone waits for the DaemonSet's pods, for which neither helm nor kubectl waits.
func (s *suite) waitPodsGone(t *testing.T) {
	t.Helper()
	s.kubectl(t, "wait", "pod", "--for=delete", "--all", "--namespace", namespace, "--timeout", timeout.String())
}

// mustBeRestored fails the test unless the node's files are those before the installation
// and the node works.
func (s *suite) mustBeRestored(t *testing.T) {
	t.Helper()
	if diff := cmp.Diff(s.before, s.files(t)); diff != "" {
		t.Errorf("the node's files differ (-before +after):\n%s", diff)
	}
	s.waitContainerd(t)
	s.waitOffered(t, map[string]int{display: 0, compute: 0, t4: 0})
	s.apply(t, podManifest("after", bed.Wait, nil))
	s.waitRunning(t, "after")
	s.remove(t, "after")
}

// volatile are files that the cluster's components change with every pod. containerd
// leaves its NRI socket behind when NRI is disabled.
var volatile = []string{
	"/run/containerd", "/run/netns", "/run/nri", "/run/runc", "/var/lib/cni", "/var/lib/containerd", "/var/log",
	"/var/lib/kubelet/pods", "/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/pod-resources",
	"/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
}

// files lists the node's files, except for the volatile ones, with their modes and links,
// and the sums of their content.
func (m *machine) files(t testing.TB) []string {
	t.Helper()
	args := []string{"/etc", "/opt/containerd", "/opt/nri", "/run", binDir, "/var/lib", "-ignore_readdir_race", "("}
	for _, path := range volatile {
		args = append(args, "-path", path, "-o")
	}
	// The kubelet rewrites its state at any time.
	args = append(args, "-false", ")", "-prune", "-o", "-printf", `%p %M %l\n`, "-type", "f", "!", "-path", kubeletRoot+"/*", "-exec", "sha256sum", "{}", "+")
	out, err := exec.Command("find", args...).Output()
	if err != nil {
		t.Fatalf("list the node's files: %v", err)
	}
	return slices.Sorted(strings.Lines(string(out)))
}
