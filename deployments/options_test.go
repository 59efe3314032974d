//go:build chart && unix

package deployments

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// The values that change nothing unless they are set, each with what it adds to the chart, and how often.
func TestOptions(t *testing.T) {
	t.Parallel()
	const both = "image: {repository: a}\nlinux: {enabled: true, config: {inventory: /etc/directx-nri/a}}\nmetrics: {enabled: true}"
	const objects, sets, windows, linux = 8, 2, 2, 3 // The last two are containers.
	without := mustTemplate(t, both)
	for set, want := range map[string]map[string]int{
		`namespaceOverride="gpus"`:                                             {"namespace: gpus\n": objects},
		`commonLabels={"team":"graphics"}`:                                     {"team: graphics\n": objects + sets},
		`commonAnnotations={"owner":"graphics"}`:                               {"owner: graphics\n": objects},
		`revisionHistoryLimit=0`:                                               {"revisionHistoryLimit: 0\n": sets},
		`serviceAccount={"create":true,"annotations":{"a":"b"}}`:               {"kind: ServiceAccount\n": 1, "a: b\n": 1, "serviceAccountName: directx-nri\n": sets},
		`serviceAccount.name="mine"`:                                           {"serviceAccountName: mine\n": sets},
		`probes.liveness.initialDelaySeconds=7`:                                {"initialDelaySeconds: 7\n": 3},
		`probes.readiness.failureThreshold=9`:                                  {"failureThreshold: 9\n": 2},
		`windows.extraEnv=[{"name":"GODEBUG","value":"a=1"}]`:                  {"name: GODEBUG\n": windows},
		`linux.extraEnv=[{"name":"GODEBUG","value":"a=1"}]`:                    {"name: GODEBUG\n": linux},
		`linux.podSecurityContext={"seLinuxOptions":{"level":"s0"}}`:           {"level: s0\n": 1},
		`linux.containerSecurityContext={"seLinuxOptions":{"type":"spc_t"}}`:   {"type: spc_t\n": linux},
		`linux.doctor=true`:                                                    {"mountPath: /host/dev,": 1, "mountPath: /etc/containerd, readOnly: true": 1, "mountPath: /run/containerd, readOnly: true": 1},
		`config={"existing":"mine"}`:                                           {"configMap: {name: mine}": 1},
		`windows.config={"existing":"mine","injection":"kubelet"}`:             {"configMap: {name: mine}": 1},
		`nodePools.pools={"a":{"os":"windows","extraArgs":{"setup":["--x"]}}}`: {"- --x\n": 1},
		`metrics.serviceMonitor={"enabled":true,"labels":{"a":"b"}}`:           {"kind: ServiceMonitor\n": 1, "a: b\n": 1, "- port: metrics\n": 1, "- port: plugin-metrics\n": 1},
		`metrics.podMonitor={"enabled":true,"labels":{"a":"b"}}`:               {"kind: PodMonitor\n": 1, "a: b\n": 1, "- port: metrics\n": 1, "- port: plugin-metrics\n": 1},
		`metrics.prometheusRule={"enabled":true,"labels":{"a":"b"}}`:           {"kind: PrometheusRule\n": 1, "a: b\n": 1, "- alert: ": 7},
		`metrics.dashboard.enabled=true`:                                       {"grafana_dashboard: \"1\"\n": 1, "directx-nri.json: |\n": 1},
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
				if got := strings.Count(rendered, part) - strings.Count(without, part); got != count {
					t.Errorf("it adds %q %d times, want %d", part, got, count)
				}
			}
			if _, err := decode([]byte(rendered)); err != nil {
				t.Error(err)
			}
		})
	}
}

// 'helm test' starts a pod with a GPU for each operating system. Nothing else is a hook.
func TestHelmTest(t *testing.T) {
	t.Parallel()
	values := "image: {repository: a}\nlinux: {enabled: true, shim: {enabled: true}, config: {inventory: /etc/directx-nri/a}}\nruntimeClass: {enabled: true}\ntest: {resource: a.b/c}"
	for restore, want := range map[string]int{"false": 2, "true": 0} {
		decoded, err := decode([]byte(mustTemplate(t, values, "--set", "restore="+restore)))
		if err != nil {
			t.Fatal(err)
		}
		pods := 0
		for _, o := range decoded {
			pod, ok := o.(*corev1.Pod)
			if !ok {
				continue
			}
			pods++
			gpus := pod.Spec.Containers[0].Resources.Limits["a.b/c"]
			if pod.Annotations["helm.sh/hook"] != "test" || gpus.Value() != 1 || *pod.Spec.RuntimeClassName != "directx" || pod.Spec.RestartPolicy != corev1.RestartPolicyNever {
				t.Errorf("%+v", pod)
			}
		}
		if pods != want {
			t.Errorf("restore is %s: %d pods, want %d", restore, pods, want)
		}
	}
}

// The rules fire when they should, and each query of the dashboard has a result.
func TestPromtool(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// Without the clients of clouds.
	build := exec.Command("go", "build", "-C", "../tools/promtool", "-trimpath", "-buildvcs=false", "-tags", "remove_all_sd", "-o", dir, "github.com/prometheus/prometheus/cmd/promtool")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	type sample struct {
		Labels string `json:"labels"`
		Value  int    `json:"value"`
	}
	type check struct {
		Expr     string   `json:"expr"`
		EvalTime string   `json:"eval_time"`
		Samples  []sample `json:"exp_samples"`
	}
	var input []map[string]string
	var checks []check
	exported := metrics(t)
	_, panels := queries(t)
	for _, q := range panels {
		checks = append(checks, check{"count(" + q.expr + ") > bool 0", "10m", []sample{{"{}", 1}}})
		for _, use := range selector.FindAllStringSubmatch(q.expr, -1) {
			labels := map[string]string{}
			for _, label := range exported[use[1]] {
				labels[label] = `"1"`
			}
			for _, m := range matcher.FindAllStringSubmatch(use[2], -1) {
				if m[2] == "=" {
					labels[m[1]] = m[3]
				}
			}
			var text []string
			for label, value := range labels {
				text = append(text, label+"="+value)
			}
			slices.Sort(text)
			one := map[string]string{"series": use[1] + "{" + strings.Join(text, ",") + "}", "values": "1+1x20"}
			if !slices.ContainsFunc(input, func(other map[string]string) bool { return maps.Equal(one, other) }) {
				input = append(input, one)
			}
		}
	}
	text, err := yaml.Marshal(map[string]any{"evaluation_interval": "1m", "tests": []any{map[string]any{"interval": "1m", "input_series": input, "promql_expr_test": checks}}})
	file := filepath.Join(dir, "dashboard.test.yaml")
	if err := errors.Join(err, os.WriteFile(file, text, 0o600)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(filepath.Join(dir, "promtool"), "test", "rules", "helm/testdata/rules.test.yaml", file).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// The chart installs the program of its own version.
func TestVersions(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(chart + "/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var metadata struct{ Version, AppVersion string }
	if err := yaml.Unmarshal(text, &metadata); err != nil || metadata.AppVersion != "v"+metadata.Version {
		t.Errorf("version %s, appVersion %s, %v", metadata.Version, metadata.AppVersion, err)
	}
}
