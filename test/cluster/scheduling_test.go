//go:build e2e && linux

package cluster

import (
	"fmt"
	"path/filepath"
	"regexp"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/directx-nri/directx-nri/test/bed"
)

// yamlBlock is a block of manifests in a page.
var yamlBlock = regexp.MustCompile("(?s)\n```yaml\n(.*?)\n```\n")

// testSchedulingPage applies the manifests of docs/scheduling.md, and expects that the pod
// has its priority and uses the quota.
func (m *machine) testSchedulingPage(t *testing.T) {
	const tenant = "tenant"
	m.apply(t, `{apiVersion: v1, kind: Namespace, metadata: {name: tenant}}`)
	blocks := yamlBlock.FindAllStringSubmatch(mustRead(t, filepath.Join(m.parts.Root, "docs/scheduling.md")), -1)
	t.Cleanup(func() {
		m.kubectl(t, "delete", "namespace", tenant)
		for _, block := range blocks {
			_, _ = m.try(kubectl, block[1], "delete", "--ignore-not-found", "--namespace", tenant, "-f", "-") // Most are gone.
		}
	})
	for _, block := range blocks {
		m.apply(t, block[1], "--namespace", tenant, "--validate=strict")
	}
	pods, err := m.pods(tenant)
	if err != nil || len(pods) != 1 || pods[0].Spec.Priority == nil || *pods[0].Spec.Priority != 1000 {
		t.Fatalf("%v: %+v", err, pods)
	}
	bed.Eventually(t, timeout, "the pod's containers use the quota", func() error {
		var quotas corev1.ResourceQuotaList
		err := m.api.Get("/api/v1/namespaces/"+tenant+"/resourcequotas", &quotas)
		if err == nil && (len(quotas.Items) != 1 || quotas.Items[0].Status.Used.Name("requests."+display, "").Value() != 2) {
			err = fmt.Errorf("%+v", quotas.Items)
		}
		return err
	})
}
