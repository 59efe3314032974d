//go:build e2e && linux

package cluster

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/directx-nri/directx-nri/advertiser/nodelabels"
	"github.com/directx-nri/directx-nri/internal/testutil"
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
	for name, n := range windowsNodes {
		s.apply(t, fmt.Sprintf(
			`{apiVersion: v1, kind: Node, metadata: {name: %s, `+
				`labels: {kubernetes.io/os: windows, kubernetes.io/hostname: %[1]s, node.kubernetes.io/windows-build: %q, directx.microsoft.com/pool: %q, zone: %q}}}`,
			name, n.build, n.pool, n.zone))
	}
	t.Cleanup(func() {
		_, _ = s.try("", "helm uninstall "+release+" --namespace "+namespace) // It may not exist.
		for name := range windowsNodes {
			s.kubectl(t, "delete", "node", name)
		}
	})

	const windows = "directx-nri-windows"
	for section, page := range map[string]string{
		"Without a registry": "docs/install.md", "Hyper-V Linux VMs": "docs/wsl.md", "Install": "docs/windows.md", "AKS": "docs/windows.md",
	} {
		s.follow(t, page, section, "helm install", "helm install", "helm install --dry-run=server")
	}
	for page, section := range map[string]string{"README.md": "Install on a Windows node", "docs/windows.md": "Run a pod"} {
		s.follow(t, page, section, "probe/display.yaml", "apply", "apply --dry-run=server")
	}
	s.follow(t, "docs/install.md", "Plain manifests", "apply -k", "apply", "apply --dry-run=server")
	s.follow(t, "README.md", "Install on a Windows node", "helm install", "REGISTRY", registry, "=NODE", "=ws2022")
	s.waitScheduled(t, map[string][]string{windows: {"ws2022"}})
	s.follow(t, "docs/windows.md", "Install", "helm upgrade", "registry.example.com", registry)
	s.waitScheduled(t, map[string][]string{windows: {"unreleased", "ws2022", "ws2022-own", "ws2025"}})
	for _, test := range []struct {
		name  string
		flags []string
		want  map[string][]string // nodes by DaemonSet
		notes string
	}{
		{"Server 2019", []string{"--set", "windows.server2019=true"},
			map[string][]string{windows: {"unreleased", "ws2019", "ws2022", "ws2022-own", "ws2025"}}, "WINDOWS-POD -c advertiser"},
		{"pools", []string{"--values", s.values(t, pools)}, map[string][]string{windows: {"unreleased", "ws2022", "ws2025"}, windows + "-render": {"ws2022-own"}}, "WINDOWS-POD -c advertiser"},
		{"affinity", []string{"--values", s.values(t, pools+affinity), "--set", "windows.updateStrategy.type=OnDelete"},
			map[string][]string{windows: {"unreleased", "ws2022"}, windows + "-render": {"ws2022-own"}}, "delete a pod to replace it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			notes := s.helmUpgrade(t, append([]string{"--set", "image.repository=" + repository, "--set", "image.tag=" + older}, test.flags...)...)
			s.waitScheduled(t, test.want)
			for set := range test.want {
				bed.MustContain(t, "the notes", notes, "rollout status daemonset/"+set+"\n", test.notes)
			}
		})
	}
	t.Run("the API server accepts all objects", func(t *testing.T) {
		rendered := s.helm(t, "template", release, chart, "--namespace", namespace, "--set", "image.repository="+repository,
			"--values", examples+"/values.yaml", "--set", "windows.enabled=true", "--values", s.values(t, pools),
			"--set", "metrics.enabled=true", "--set", "windows.labels=true", "--set", "linux.labels=true")
		bed.MustContain(t, "the chart", rendered, "kind: NetworkPolicy", "kind: Service")
		s.apply(t, rendered, "--dry-run=server", "--validate=strict")
	})
	t.Run("the labeler labels its own node", s.testLabeler)
	t.Run("namespace that does not admit the pods", func(t *testing.T) {
		const confined = "confined"
		s.apply(t, `{apiVersion: v1, kind: Namespace, metadata: {name: confined, labels: {pod-security.kubernetes.io/enforce: baseline}}}`)
		t.Cleanup(func() { s.kubectl(t, "delete", "namespace", confined) })
		out, err := s.try("", "helm install "+release+" "+chart+" --namespace "+confined+" --set image.repository="+repository)
		if err == nil {
			t.Error("the chart is installed")
			s.helm(t, "uninstall", release, "--namespace", confined)
		}
		bed.MustContain(t, "helm's error", out, "kubectl label namespace "+confined)
	})
}

// testLabeler runs directx-labeler with the rights that the chart gives it on a Windows node.
func (s *suite) testLabeler(t *testing.T) {
	const own, count = "ws2022", nodelabels.Prefix + "count"
	s.helmUpgrade(t, "--set", "image.repository="+repository, "--set", "image.tag="+older, "--set", "windows.labels=true")
	s.apply(t, fmt.Sprintf(
		`{apiVersion: v1, kind: Pod, metadata: {name: labeler, namespace: %s}, `+
			`spec: {nodeName: %s, serviceAccountName: directx-nri-labeler, containers: [{name: labeler, image: none}]}}`,
		namespace, own))
	t.Cleanup(func() { s.kubectl(t, "delete", "pod", "labeler", "--namespace", namespace, "--force") })
	token := strings.TrimSpace(s.kubectl(t, "create", "token", "directx-nri-labeler", "--namespace", namespace, "--bound-object-kind", "Pod", "--bound-object-name", "labeler"))

	file := filepath.Join(t.TempDir(), "labels")
	for i, labels := range []map[string]string{{count: "2", nodelabels.Prefix + "kind": "display"}, {count: "1"}} {
		testutil.NoError(t, nodelabels.Write(file, labels))
		if i == 0 {
			s.start(t, "labeler", filepath.Join(s.parts.Root, "bin", platform, "directx-labeler"), "--node", own, "--labels-file", file, "--kubeconfig", bed.WriteKubeconfig(t, s.file("labeler.yaml"), token))
		}
		bed.Eventually(t, timeout, fmt.Sprintf("the node has the labels %v", labels), func() error {
			var n corev1.Node
			err := s.api.Get("/api/v1/nodes/"+own, &n)
			maps.DeleteFunc(n.Labels, func(name, _ string) bool { return !strings.HasPrefix(name, nodelabels.Prefix) })
			if !maps.Equal(labels, n.Labels) {
				err = errors.Join(err, fmt.Errorf("they are %v", n.Labels))
			}
			return err
		})
	}

	labels := func(labels map[string]any) any { return map[string]any{"metadata": map[string]any{"labels": labels}} }
	for _, test := range []struct {
		node  string
		patch any
		want  string
	}{
		{"ws2025", labels(map[string]any{count: "1"}), "its own node only"},
		{own, labels(map[string]any{"node-role.kubernetes.io/control-plane": ""}), "labels directx.microsoft.com/gpu.* only"},
		{own, labels(map[string]any{"zone": "b"}), "labels directx.microsoft.com/gpu.* only"},
		{own, labels(map[string]any{"zone": nil}), "labels directx.microsoft.com/gpu.* only"},
		{own, map[string]any{"spec": map[string]any{"unschedulable": true}}, "labels only"},
		{own, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"a": "b"}}}, "labels only"},
		{own + "/status", map[string]any{"status": map[string]any{"capacity": map[string]any{"a": "1"}}}, "forbidden"},
	} {
		if err := s.api.As(t, token).Patch("/api/v1/nodes/"+test.node, test.patch); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("patch %v of node %s: %v, want %q", test.patch, test.node, err, test.want)
		}
	}
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
