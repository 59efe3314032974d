//go:build e2e && linux

package cluster

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/test/bed"
)

// testUninstall removes the release, and leaves the node policy and the allocation records only.
func (s *suite) testUninstall(t *testing.T) {
	s.remove(t, holders()...)
	s.holders = nil
	s.helm(t, "uninstall", release, "--namespace", namespace, "--wait")
	// helm does not wait for the DaemonSet's pods.
	s.kubectl(t, "wait", "pod", "--for=delete", "--all", "--namespace", namespace, "--timeout", timeout.String())
	if diff := cmp.Diff(s.before, s.files(t)); diff != "" {
		t.Errorf("the node's files differ (-before +after):\n%s", diff)
	}
	s.waitOffered(t, map[string]int{display: 0, compute: 0, t4: 0})
	s.apply(t, podManifest("after", bed.Wait, nil))
	s.waitRunning(t, "after")
	s.remove(t, "after")
}

// volatile are files that the cluster's components change with every pod, and what stays on the node.
var volatile = []string{
	"/run/containerd", "/run/netns", "/run/runc", "/run/directx-nri", "/var/lib/directx-nri", "/var/lib/cni", "/var/lib/containerd", "/var/lib/containers", "/var/log",
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
