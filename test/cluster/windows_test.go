//go:build e2e && linux

package cluster

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/directx-nri/directx-nri/test/bed"
)

// windowsNodes are node objects without a machine, by name.
var windowsNodes = map[string]struct{ build, pool, zone string }{
	"ws2019":     {build: "10.0.17763", zone: "a"},
	"sac1909":    {build: "10.0.18363"},
	"ws2022":     {build: "10.0.20348", zone: "a"},
	"ws2022-own": {build: "10.0.20348", zone: "a", pool: "render"},
	"ws2025":     {build: "10.0.26100"},
	"unreleased": {build: "10.0.29999"},
}

// affinity selects nodes by a label or by name.
const affinity = `
windows:
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
          - matchExpressions: [{key: zone, operator: In, values: [a]}]
          - matchFields: [{key: metadata.name, operator: In, values: [unreleased]}]
`

// testWindows checks the Windows objects with the API server, and the nodes that the
// controller manager selects.
func (s *suite) testWindows(t *testing.T) {
	s.kubectl(t, "apply", "--filename", manifests+"/namespace.yaml")
	for name, n := range windowsNodes {
		s.apply(t, fmt.Sprintf(`{apiVersion: v1, kind: Node, metadata: {name: %s, labels: {kubernetes.io/os: windows, kubernetes.io/hostname: %[1]s, node.kubernetes.io/windows-build: %q, directx.microsoft.com/pool: %q, zone: %q}}}`, name, n.build, n.pool, n.zone))
	}
	t.Cleanup(func() {
		_, _ = s.try(helm, "", "uninstall", release, "--namespace", namespace) // It may not exist.
		for name := range windowsNodes {
			s.kubectl(t, "delete", "node", name)
		}
	})

	const windows = "directx-nri-windows"
	for _, test := range []struct {
		name  string
		flags []string
		want  map[string][]string // nodes by DaemonSet
	}{
		{"default", nil, map[string][]string{windows: {"unreleased", "ws2022", "ws2022-own", "ws2025"}}},
		{"Server 2019", []string{"--set", "windows.server2019=true"}, map[string][]string{windows: {"unreleased", "ws2019", "ws2022", "ws2022-own", "ws2025"}}},
		{"pools", []string{"--values", s.values(t, pools)}, map[string][]string{windows: {"unreleased", "ws2022", "ws2025"}, windows + "-render": {"ws2022-own"}}},
		{"affinity", []string{"--values", s.values(t, pools+affinity)}, map[string][]string{windows: {"unreleased", "ws2022"}, windows + "-render": {"ws2022-own"}}},
		{"restore", []string{"--set", "restore=true"}, map[string][]string{windows: {"unreleased", "ws2022", "ws2022-own", "ws2025"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.helmUpgrade(t, append([]string{"--set", "image.repository=" + repository, "--set", "image.tag=" + s.older.version}, test.flags...)...)
			s.waitScheduled(t, test.want)
		})
	}
	t.Run("the API server accepts all objects", func(t *testing.T) {
		rendered := s.helm(t, "template", release, chart, "--namespace", namespace, "--set", "image.repository="+repository,
			"--values", examples+"/values.yaml", "--set", "windows.enabled=true", "--set", "linux.shim.enabled=true", "--values", s.values(t, pools),
			"--set", "metrics.enabled=true", "--set", "runtimeClass.enabled=true")
		bed.MustContain(t, "the chart", rendered, "kind: NetworkPolicy", "kind: RuntimeClass", "kind: Service")
		s.apply(t, rendered, "--dry-run=server", "--validate=strict")
	})
	t.Run("namespace that does not admit the pods", func(t *testing.T) {
		const confined = "confined"
		s.apply(t, `{apiVersion: v1, kind: Namespace, metadata: {name: confined, labels: {pod-security.kubernetes.io/enforce: baseline}}}`)
		t.Cleanup(func() { s.kubectl(t, "delete", "namespace", confined) })
		out, err := s.try(helm, "", "install", release, chart, "--namespace", confined, "--set", "image.repository="+repository)
		if err == nil {
			t.Error("the chart is installed")
			s.helm(t, "uninstall", release, "--namespace", confined)
		}
		bed.MustContain(t, "helm's error", out, "kubectl label namespace "+confined)
	})
}

// waitScheduled waits until the DaemonSets have pods for exactly these nodes.
func (s *suite) waitScheduled(t *testing.T, want map[string][]string) {
	t.Helper()
	bed.Eventually(t, timeout, "the DaemonSets have the right nodes", func() error {
		var sets appsv1.DaemonSetList
		if err := s.api.Get("/apis/apps/v1/namespaces/"+namespace+"/daemonsets", &sets); err != nil {
			return err
		}
		for _, set := range sets.Items {
			if set.Status.ObservedGeneration != set.Generation {
				return fmt.Errorf("DaemonSet %s: generation %d, status %+v", set.Name, set.Generation, set.Status)
			}
		}
		pods, err := s.pods(namespace)
		got := make(map[string][]string)
		for _, pod := range pods {
			if pod.DeletionTimestamp == nil && len(pod.OwnerReferences) == 1 {
				owner := pod.OwnerReferences[0].Name
				// The controller sets the node's name, also before the pod is scheduled.
				got[owner] = append(got[owner], pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0])
				slices.Sort(got[owner])
			}
		}
		if diff := cmp.Diff(want, got); err == nil && diff != "" {
			err = errors.New(diff)
		}
		return err
	})
}
