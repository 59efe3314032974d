//go:build e2e && linux

package cluster

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	node "directx-nri/test/bed"
)

// windowsNodes are nodes that nobody runs, by their build, and what more their
// labels say.
var windowsNodes = map[string]struct{ build, pool string }{
	"ws2019":     {build: "10.0.17763"},
	"sac1909":    {build: "10.0.18363"},
	"ws2022":     {build: "10.0.20348"},
	"ws2022-own": {build: "10.0.20348", pool: "render"},
	"ws2025":     {build: "10.0.26100"},
	"unreleased": {build: "10.0.29999"},
}

func (s *suite) testWindows(t *testing.T) {
	s.Kubectl(t, "apply", "--filename", manifests+"/namespace.yaml")
	for name, n := range windowsNodes {
		s.Apply(t, fmt.Sprintf(`{apiVersion: v1, kind: Node, metadata: {name: %s, labels: {kubernetes.io/os: windows, kubernetes.io/hostname: %[1]s, node.kubernetes.io/windows-build: %q, directx.microsoft.com/pool: %q}}}`, name, n.build, n.pool))
	}
	t.Cleanup(func() {
		_, _ = s.TryHelm("uninstall", release, "--namespace", namespace) // It may not be there.
		for name := range windowsNodes {
			s.Kubectl(t, "delete", "node", name)
		}
	})

	t.Run("the server takes the manifests", func(t *testing.T) {
		files, err := filepath.Glob(filepath.Join(s.Parts.Root, manifests, "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if filepath.Base(file) == "kustomization.yaml" {
				continue
			}
			s.Kubectl(t, "apply", "--dry-run=server", "--validate=strict", "--filename", file)
		}
	})
	install := func(flags ...string) {
		s.helmUpgrade(t, append([]string{"--set", "image.repository=" + repository, "--set", "image.tag=" + s.images.older.version}, flags...)...)
	}
	t.Run("Server 2022 and newer", func(t *testing.T) {
		install()
		s.mustBeOn(t, map[string][]string{"directx-nri-windows": {"unreleased", "ws2022", "ws2022-own", "ws2025"}})
	})
	t.Run("Server 2019 when it is asked for", func(t *testing.T) {
		install("--set", "windows.server2019=true")
		s.mustBeOn(t, map[string][]string{"directx-nri-windows": {"unreleased", "ws2019", "ws2022", "ws2022-own", "ws2025"}})
	})
	t.Run("pools", func(t *testing.T) {
		install("--values", s.values(t, pools))
		s.mustBeOn(t, map[string][]string{
			"directx-nri-windows":        {"unreleased", "ws2022", "ws2025"},
			"directx-nri-windows-render": {"ws2022-own"},
		})
	})
	t.Run("restore has pods on the same nodes", func(t *testing.T) {
		install("--set", "restore=true")
		s.mustBeOn(t, map[string][]string{"directx-nri-windows": {"unreleased", "ws2022", "ws2022-own", "ws2025"}})
	})
	t.Run("with everything", func(t *testing.T) {
		s.Apply(t, podMonitors)
		t.Cleanup(func() { s.Kubectl(t, "delete", "crd", "podmonitors.monitoring.coreos.com") })
		s.Kubectl(t, "wait", "--for=condition=established", "crd/podmonitors.monitoring.coreos.com")
		rendered := s.Helm(t, "template", release, chart, "--namespace", namespace, "--set", "image.repository="+repository,
			"--values", examples+"/values.yaml", "--set", "windows.enabled=true", "--set", "linux.shim.enabled=true", "--values", s.values(t, pools),
			"--set", "metrics.enabled=true", "--set", "metrics.podMonitor.enabled=true", "--set", "runtimeClass.enabled=true")
		mustContain(t, "the chart", rendered, "kind: PodMonitor", "kind: NetworkPolicy", "kind: RuntimeClass", "kind: Service")
		s.Apply(t, rendered, "--dry-run=server", "--validate=strict")
	})
	t.Run("a namespace that would refuse the pods", func(t *testing.T) {
		const confined = "confined"
		s.Apply(t, `{apiVersion: v1, kind: Namespace, metadata: {name: confined, labels: {pod-security.kubernetes.io/enforce: baseline}}}`)
		t.Cleanup(func() { s.Kubectl(t, "delete", "namespace", confined) })
		out, err := s.TryHelm("install", release, chart, "--namespace", confined, "--set", "image.repository="+repository)
		if err == nil {
			t.Error("the chart is installed where its pods cannot be")
			s.Helm(t, "uninstall", release, "--namespace", confined)
		}
		mustContain(t, "helm", out, "kubectl label namespace "+confined)
	})
}

// mustBeOn waits until DaemonSets have pods for just these nodes. Nobody runs them,
// so they wait for the scheduler.
func (s *suite) mustBeOn(t *testing.T, want map[string][]string) {
	t.Helper()
	node.Eventually(t, timeout, "the DaemonSets have the right nodes", func() error {
		sets, err := s.DaemonSets(namespace)
		if err != nil {
			return err
		}
		scheduled := make(map[string]int)
		for _, set := range sets {
			if set.Status.ObservedGeneration != set.Generation {
				return fmt.Errorf("DaemonSet %s is not looked at yet", set.Name)
			}
			scheduled[set.Name] = int(set.Status.DesiredNumberScheduled)
		}
		pods, err := s.Pods(namespace)
		if err != nil {
			return err
		}
		got := make(map[string][]string)
		for _, pod := range pods {
			if pod.DeletionTimestamp == nil && len(pod.OwnerReferences) == 1 {
				got[pod.OwnerReferences[0].Name] = append(got[pod.OwnerReferences[0].Name], target(pod))
			}
		}
		for name := range got {
			slices.Sort(got[name])
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return errors.New(diff)
		}
		for name, count := range scheduled {
			if count != len(want[name]) {
				return fmt.Errorf("DaemonSet %s wants %d pods", name, count)
			}
		}
		return nil
	})
}

// target is the node that a DaemonSet's pod is for.
func target(pod corev1.Pod) string {
	if pod.Spec.Affinity != nil && pod.Spec.Affinity.NodeAffinity != nil && pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, field := range term.MatchFields {
				if field.Key == "metadata.name" {
					return strings.Join(field.Values, ",")
				}
			}
		}
	}
	return pod.Spec.NodeName
}

// podMonitors is the least of the Prometheus operator's definition of a
// PodMonitor.
const podMonitors = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: podmonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: PodMonitor, plural: podmonitors, singular: podmonitor}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
`
