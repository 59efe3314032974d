package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// answers are those of the API server by path. The cluster suite has a real one.
var answers = map[string]string{
	"/api/v1/nodes": `
apiVersion: v1
kind: NodeList
items:
  - metadata: {name: a, labels: {directx.microsoft.com/gpu.product: T4}}
    status: {capacity: {directx.microsoft.com/display: 8, example.com/t4: 4}, allocatable: {directx.microsoft.com/display: 4, example.com/t4: 4}}
  - metadata: {name: b}
    status: {capacity: {directx.microsoft.com/compute: 2}, allocatable: {directx.microsoft.com/compute: 2}}
  - metadata: {name: broken}
  - metadata: {name: without}
`,
	"/api/v1/pods": `
apiVersion: v1
kind: PodList
items:
` + pod("advertiser-a", "a", "advertiser", "Running", "True") +
		pod("advertiser-b", "b", "advertiser", "Running", "True") +
		pod("advertiser-c", "broken", "advertiser", "Pending", "False") +
		pod("trains", "a", "directx.microsoft.com/display", "Running", "True") +
		pod("refused", "a", "directx.microsoft.com/display", "Pending", "False") +
		pod("custom", "a", "example.com/t4", "Running", "True") +
		pod("web", "a", "cpu", "Pending", "False") +
		pod("waits", "", "directx.microsoft.com/compute", "Pending", "False"),
	"/api/v1/events": `
apiVersion: v1
kind: EventList
items:
  - {involvedObject: {uid: refused}, lastTimestamp: null, eventTime: "2026-01-01T00:00:02.000000Z", message: "directx-nri: the last"}
  - {involvedObject: {uid: refused}, lastTimestamp: "2026-01-01T00:00:01Z", message: "directx-nri: the first"}
  - {involvedObject: {uid: trains}, lastTimestamp: "2026-01-01T00:00:01Z", message: "before it was ready"}
  - {involvedObject: {uid: waits}, lastTimestamp: "2026-01-01T00:00:01Z", message: Insufficient}
`,
	"/api/v1/namespaces/default/pods/advertiser-a:9400/proxy/metrics": `
# TYPE directx_replicas gauge
directx_replicas{gpu="PCIROOT(0)#PCI(1C00)",resource="directx.microsoft.com/display"} 4
directx_replicas{gpu="PCIROOT(0)#PCI(1B00)",resource="directx.microsoft.com/display"} 4
directx_replicas{gpu="PCIROOT(0)#PCI(1D00)",resource="example.com/t4"} 4
# TYPE directx_replicas_in_use gauge
directx_replicas_in_use{gpu="PCIROOT(0)#PCI(1B00)",resource="directx.microsoft.com/display"} 1
# TYPE directx_resource_registered gauge
directx_resource_registered{resource="example.com/t4"} 1
# TYPE directx_config_last_reload_successful gauge
directx_config_last_reload_successful 0
`,
}

// pod returns an item of the list of pods. kind is advertiser, or the resource that the pod requests.
func pod(name, node, kind, phase, ready string) string {
	container := fmt.Sprintf(`{name: main, resources: {limits: {%s: 1}}}`, kind)
	if kind == "advertiser" {
		container = `{name: advertiser, command: [/directx-advertiser], ports: [{name: metrics, containerPort: 9400}]}`
	}
	return fmt.Sprintf("  - {metadata: {name: %s, namespace: default, uid: %[1]s}, spec: {nodeName: %q, containers: [%s]}, status: {phase: %s, conditions: [{type: Ready, status: %q}]}}\n",
		name, node, container, phase, ready)
}

func TestTable(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		if r.URL.Path == "/api/v1/pods" && r.FormValue("fieldSelector") != activePods {
			answer += pod("done", "a", "directx.microsoft.com/display", "Succeeded", "False")
		}
		if !ok {
			answer = "\napiVersion: v1\nkind: Status\nstatus: Failure\nmessage: connection refused"
		}
		text := []byte(answer)
		if strings.HasPrefix(answer, "\napiVersion") {
			w.Header().Set("Content-Type", "application/json")
			text, _ = yaml.YAMLToJSON(text)
		}
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write(text)
	}))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: c, `+
		`contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: %q}}]}`, server.URL)
	if err := os.WriteFile(kubeconfig, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for format, want := range map[string]string{
		"table": `
NODE    PRODUCT  RESOURCE                       GPU                   REPLICAS  IN USE  PODS                            PROBLEMS
a       T4       directx.microsoft.com/display  PCIROOT(0)#PCI(1B00)  4         1       default/trains,default/refused  the configuration is refused, and the one before is in force; 4 of 8 directx.microsoft.com/display cannot be allocated; pod default/refused: directx-nri: the last
a       T4       directx.microsoft.com/display  PCIROOT(0)#PCI(1C00)  4         -       -                               -
a       T4       example.com/t4                 PCIROOT(0)#PCI(1D00)  4         -       default/custom                  -
b       -        directx.microsoft.com/compute  -                     2         -       -                               the metrics cannot be read: connection refused
broken  -        -                              -                     0         -       -                               pod default/advertiser-c: not ready
-       -        directx.microsoft.com/compute  -                     0         -       default/waits                   pod default/waits: Insufficient
`,
		"json": `{
    "node": "a",
    "product": "T4",
    "resource": "directx.microsoft.com/display",
    "gpu": "PCIROOT(0)#PCI(1B00)",
    "replicas": 4,
    "inUse": 1,
`,
	} {
		command := newCommand()
		var out bytes.Buffer
		command.SetOut(&out)
		command.SetArgs([]string{"--kubeconfig", kubeconfig, "--output", format})
		err := command.ExecuteContext(t.Context())
		if got := "\n" + out.String(); err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %v: %s", format, err, cmp.Diff(want, got))
		}
	}
}
