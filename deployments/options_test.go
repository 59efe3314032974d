//go:build chart && unix

package deployments

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// The values that change nothing unless they are set, each with what the chart has then only, and how often. By
// default it has three kinds of objects.
func TestOptions(t *testing.T) {
	t.Parallel()
	const both = "image: {repository: a}\nlinux: {enabled: true, config: {inventory: /etc/directx-nri/a}}\nmetrics: {enabled: true}"
	const objects, sets, windows, linux = 8, 2, 1, 2 // The last two are containers.
	without := mustTemplate(t, both)
	for _, port := range []string{"metrics", "plugin-metrics"} {
		for _, part := range []string{"{name: " + port + ", containerPort: ", "targetPort: " + port + "}", "protocol: TCP, port: " + port + "}"} {
			if !strings.Contains(without, part) {
				t.Errorf("the pods, the service or the network policy have no %s", part)
			}
		}
	}
	for set, want := range map[string]map[string]int{
		`namespaceOverride="gpus"`:                                           {"namespace: gpus\n": objects},
		`commonLabels={"team":"graphics"}`:                                   {"team: graphics\n": objects + sets},
		`commonAnnotations={"owner":"graphics"}`:                             {"owner: graphics\n": objects},
		`revisionHistoryLimit=0`:                                             {"revisionHistoryLimit: 0\n": sets},
		`serviceAccount={"create":true,"annotations":{"a":"b"}}`:             {"kind: ServiceAccount\n": 1, "a: b\n": 1, "serviceAccountName: directx-nri\n": sets},
		`serviceAccount.name="mine"`:                                         {"serviceAccountName: mine\n": sets},
		`probes.liveness.initialDelaySeconds=7`:                              {"initialDelaySeconds: 7\n": 3},
		`probes.readiness.failureThreshold=9`:                                {"failureThreshold: 9\n": 2},
		`windows.extraEnv=[{"name":"GODEBUG","value":"a=1"}]`:                {"name: GODEBUG\n": windows},
		`linux.extraEnv=[{"name":"GODEBUG","value":"a=1"}]`:                  {"name: GODEBUG\n": linux},
		`linux.podSecurityContext={"seLinuxOptions":{"level":"s0"}}`:         {"level: s0\n": 1},
		`linux.containerSecurityContext={"seLinuxOptions":{"type":"spc_t"}}`: {"type: spc_t\n": linux},
		`linux.labels=true`: {
			"--labels-file=/etc/kubernetes/node-feature-discovery/features.d/directx-nri\n":    1,
			"path: /etc/kubernetes/node-feature-discovery/features.d, type: DirectoryOrCreate": 1,
		},
		`windows.labels=true`: {
			"kind: ServiceAccount\n": 1, "kind: ClusterRole\n": 1, "kind: ValidatingAdmissionPolicyBinding\n": 1,
			"directx-labeler.exe": 1, `--labels-file=C:\directx-nri-labels\labels`: 2, "serviceAccountToken": 1,
		},
		`config={"existing":"mine"}`:                                                {"configMap: {name: mine}": 1},
		`windows.config={"existing":"mine","injection":"kubelet"}`:                  {"configMap: {name: mine}": 1},
		`nodePools.pools={"a":{"os":"windows","extraArgs":{"advertiser":["--x"]}}}`: {"- --x\n": 1},
		`metrics.podMonitor={"enabled":true,"labels":{"a":"b"}}`:                    {"kind: PodMonitor\n": 1, "a: b\n": 1, "- port: metrics\n": 1, "- port: plugin-metrics\n": 1},
		`metrics.prometheusRule={"enabled":true,"labels":{"a":"b"}}`:                {"kind: PrometheusRule\n": 1, "a: b\n": 1, "- alert: ": 7},
		`test.resource="a.b/c"`:                                                     {"a.b/c: '1'}\n": 2},
		`metrics.dashboard.enabled=true`:                                            {"grafana_dashboard: \"1\"\n": 1, "directx-nri.json: |\n": 1},
		`windows.extraVolumes=[{"name":"mine","emptyDir":{}}],windows.extraVolumeMounts=[{"name":"mine","mountPath":"/mine"}]`: {
			"name: mine\n": 1, `"mountPath":"/mine"`: windows,
		},
		`linux.extraVolumes=[{"name":"mine","emptyDir":{}}],linux.extraVolumeMounts=[{"name":"mine","mountPath":"/mine"}]`: {
			"mountPath: /mine\n": linux, "name: mine\n": 1 + linux,
		},
	} {
		name, _, _ := strings.Cut(set, "=")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rendered := mustTemplate(t, both, "--set-json", set)
			for part, count := range want {
				if got, before := strings.Count(rendered, part), strings.Count(without, part); got != count || before != 0 {
					t.Errorf("the chart has %q %d times, and %d times without it, want %d and 0", part, got, before, count)
				}
			}
			if _, err := decode([]byte(rendered)); err != nil {
				t.Error(err)
			}
		})
	}
	decoded, err := decode([]byte(mustTemplate(t, "image: {repository: a}")))
	pod, isPod := decoded[len(decoded)-1].(*corev1.Pod)
	if err != nil || len(decoded) != 3 || !isPod || pod.Annotations["helm.sh/hook"] != "test" {
		t.Fatalf("by default, the chart has %+v, %v", decoded, err)
	}
	checkProbe(t, pod.Spec)
	// helm prints the notes only with a cluster.
	dir := t.TempDir()
	err = errors.Join(os.CopyFS(dir, os.DirFS(chart)),
		os.WriteFile(dir+"/templates/notes.yaml", []byte(`notes: {{ include "directx-nri/templates/NOTES.txt" . | toJson }}`), 0o600))
	notes, stderr, helmErr := helm(t, "template", "a", dir, "--show-only=templates/notes.yaml",
		"--set-json", `image.tag="1",linux={"enabled":true,"discover":true,"doctor":true,"criSocket":"/c/s"}`)
	if err != nil || helmErr != nil || !strings.Contains(notes, `--cri-socket=/c/s`) {
		t.Errorf("%v, %v: the notes lack doctor's paths: %s%s", err, helmErr, notes, stderr)
	}
}

// The rules fire when they should, and each query of the dashboard has a result with metrics of the real daemons,
// which TestMetrics of test/e2e scraped after a failed allocation.
func TestPromtool(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// Without the clients of clouds.
	build := exec.Command("go", "build", "-C", "../tools/promtool", "-trimpath", "-buildvcs=false", "-tags", "remove_all_sd", "-o", dir, "github.com/prometheus/prometheus/cmd/promtool")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	scraped, err := os.ReadFile("helm/testdata/metrics.txt")
	text, dashboardErr := os.ReadFile(chart + "/monitoring/dashboard.json")
	var dashboard struct {
		Panels []struct {
			Targets []struct{ Expr string }
		}
	}
	if err := errors.Join(err, dashboardErr, json.Unmarshal(text, &dashboard)); err != nil {
		t.Fatal(err)
	}
	var series, checks []any
	for _, s := range regexp.MustCompile(`(?m)^(directx_\w+)(?:{(.*)})? (\S+)$`).FindAllStringSubmatch(string(scraped), -1) {
		series = append(series, map[string]any{"series": s[1] + `{instance="node",` + s[2] + "}", "values": s[3] + "+1x20"})
	}
	variables := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*") // Grafana replaces these.
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			checks = append(checks, map[string]any{
				"expr": "count(" + variables.Replace(target.Expr) + ") > bool 0", "eval_time": "10m", "exp_samples": []any{map[string]any{"labels": "{}", "value": 1}},
			})
		}
	}
	test := map[string]any{"interval": "1m", "input_series": series, "promql_expr_test": checks}
	text, err = yaml.Marshal(map[string]any{"evaluation_interval": "1m", "tests": []any{test}})
	file := filepath.Join(dir, "dashboard.test.yaml")
	if err := errors.Join(err, os.WriteFile(file, text, 0o600)); err != nil || len(checks) < 12 {
		t.Fatalf("%d queries: %v", len(checks), err)
	}
	if out, err := exec.Command(filepath.Join(dir, "promtool"), "test", "rules", "helm/testdata/rules.test.yaml", file).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
