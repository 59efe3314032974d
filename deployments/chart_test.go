//go:build chart && unix

package deployments

import (
	"bytes"
	"cmp"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const chart = "helm/directx-nri"

// helmProgram returns the helm that test/parts/build.sh built.
func helmProgram(t *testing.T) string {
	t.Helper()
	program, err := filepath.Abs(filepath.Join(cmp.Or(os.Getenv("DIRECTX_NRI_PARTS"), "../.parts/bin"), "helm"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v; to build it, run: test/parts/build.sh helm", err)
	}
	return program
}

// helm runs helm without the user's files and without a cluster.
func helm(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	c := exec.Command(helmProgram(t), args...)
	home := t.TempDir()
	c.Env = []string{"HOME=" + home, "HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home, "PATH=/usr/bin:/bin"}
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err = c.Run()
	return out.String(), errs.String(), err
}

// template renders the chart with values.
func template(t *testing.T, values string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	return helm(t, append([]string{"template", "directx-nri", chart, "--namespace", "directx-nri", "--values", file}, args...)...)
}

// mustTemplate renders the chart with values, and refuses warnings.
func mustTemplate(t *testing.T, values string, args ...string) string {
	t.Helper()
	stdout, stderr, err := template(t, values, args...)
	if err != nil || stderr != "" {
		t.Fatalf("%q %q: %v: %s", values, args, err, stderr)
	}
	return stdout
}

func valueFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("helm/testdata/values/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	return files
}

// renderValues renders the files of testdata/values, once.
func renderValues(t *testing.T) map[string][]byte {
	t.Helper()
	renderedValues.once.Do(func() {
		renderedValues.texts = map[string][]byte{}
		for _, file := range append(valueFiles(t), "examples/linux/values.yaml") {
			renderedValues.texts[filepath.Base(file)] = []byte(mustTemplate(t, "image: {repository: directx-nri}", "--values", file))
		}
	})
	return maps.Clone(renderedValues.texts)
}

var renderedValues struct {
	once  sync.Once
	texts map[string][]byte
}

func TestLint(t *testing.T) {
	t.Parallel()
	for _, file := range valueFiles(t) {
		stdout, stderr, err := helm(t, "lint", "--strict", chart, "--namespace", "directx-nri", "--values", file)
		if err != nil || strings.Contains(stdout, "[WARNING]") {
			t.Errorf("%s: %v\n%s%s", file, err, stdout, stderr)
		}
	}
}

func TestManifestsAreCurrent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if out, err := exec.Command("sh", "helm/render.sh", helmProgram(t), dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := exec.Command("diff", "-u", "--exclude=kustomization.yaml", "--exclude=namespace.yaml", "manifests", dir).CombinedOutput(); err != nil {
		t.Errorf("run `make generate`: %s", out)
	}
}

// The schema refuses wrong values, and the templates contradictory ones. Both name the
// value.
func TestRefuses(t *testing.T) {
	t.Parallel()
	const image, linux, schema = "image: {repository: a}\n", "image: {repository: a}\nwindows: {enabled: false}\n", "schema"
	for name, test := range map[string]struct{ values, by, want string }{
		"unknown key":                         {image + "windwos: {enabled: true}", schema, "windwos"},
		"arguments of an unknown container":   {image + "windows: {extraArgs: {nri: [--log-level=debug]}}", schema, "'nri'"},
		"invalid port":                        {image + "metrics: {port: 0}", schema, "/metrics/port"},
		"digest that is not SHA-256":          {image + "image: {digest: sha1:abc}", schema, "/image/digest"},
		"invalid configuration":               {image + "config: {replicas: 0}", schema, "/config/replicas"},
		"resource without a domain":           {image + "config: {resources: [{name: gpu}]}", schema, "/config/resources/0/name"},
		"unknown key of the configuration":    {image + "config: {replica: 4}", schema, "replica"},
		"unknown vendor of a system's rule":   {image + "windows: {config: {resources: [{name: a.b/c, match: {vendor: nvdia}}]}}", schema, "/windows/config/resources/0/match/vendor"},
		"preset and resources":                {image + "config: {preset: alibaba, resources: [{name: a.b/c}]}", schema, "/config"},
		"list for a configuration":            {image + "config: [a]", schema, "/config"},
		"mapping for an inventory":            {image + "inventory: {devices: []}", schema, "/inventory"},
		"pool of an unknown operating system": {image + "nodePools: {pools: {a: {os: darwin}}}", schema, "/nodePools/pools/a/os"},
		"pool name in capitals":               {image + "nodePools: {pools: {Big: {}}}", schema, "Big"},
		"relative path":                       {image + "linux: {criSocket: containerd.sock}", schema, "/linux/criSocket"},
		"character that cmd.exe interprets":   {image + `windows: {extraArgs: {advertiser: ["--from=C:\\a & b"]}}`, schema, "/windows/extraArgs/advertiser/0"},
		"label of the chart":                  {image + "windows: {podLabels: {app.kubernetes.io/name: x}}", schema, "/windows/podLabels"},
		"operating system":                    {image + "windows: {nodeSelector: {kubernetes.io/os: linux}}", schema, "/windows/nodeSelector"},
		"interval":                            {image + "metrics: {podMonitor: {interval: often}}", schema, "/metrics/podMonitor/interval"},
		"second pod on a node":                {image + "windows: {updateStrategy: {rollingUpdate: {maxSurge: 1}}}", schema, "maxSurge"},
		"empty section":                       {image + "nodePools:", schema, "nodePools"},
		"image with its tag":                  {"image: {repository: 'a.b:5000/c:1'}", "", "image.tag"},
		"no operating system":                 {image + "windows: {enabled: false}", "", "windows.enabled and linux.enabled"},
		"Linux without an inventory":          {linux + "linux: {enabled: true}", "", "linux.inventory=FILE"},
		"driver that the pod cannot see":      {linux + "linux: {enabled: true, discover: true, hostPaths: [/dev]}", "", "linux.discover: /usr/lib/wsl is in none"},
		"two inventories":                     {image + "config: {inventory: 'C:\\a'}\ninventory: 'devices: []'", "", "inventory and config.inventory"},
		"inventory that the pod cannot read":  {linux + "linux: {enabled: true, config: {inventory: /srv/a}}", "", "linux.config.inventory"},
		"device that the pod cannot see":      {linux + "linux: {enabled: true, inventory: 'devices: [{linux: {deviceNodes: [{path: /opt/dxg}]}}]'}", "", "/opt/dxg is in none of linux.hostPaths"},
		"library that the pod cannot see":     {linux + "linux: {enabled: true, inventory: 'devices: [{linux: {libraries: [/usr/library/a]}}]'}", "", "/usr/library/a"},
		"Server 2019 and location paths":      {image + "windows: {server2019: true}\nconfig: {assignmentMode: location-path}", "", "windows.server2019"},
		"the same in a pool": {
			image + "windows: {server2019: true}\nnodePools: {pools: {a: {config: {assignmentMode: location-path}}}}", "", "nodePools.pools.a.config.assignmentMode",
		},
		"metrics in the configuration":       {image + "config: {metrics: {address: ':1'}}", "", "metrics.port"},
		"NRI on Windows":                     {image + "config: {injection: nri}", "", "config.injection"},
		"text that is not YAML":              {image + "config: 'a: ['", "", "config is not valid YAML"},
		"incomplete text":                    {image + "config: 'replicas: 2'", "", "apiVersion"},
		"node in two pools":                  {image + "nodePools: {pools: {a: {values: [x]}, b: {values: [x]}}}", "", "two pools"},
		"pool that is not served":            {image + "nodePools: {pools: {a: {os: linux}}}", "", "nodePools.pools.a.os"},
		"the same port twice":                {image + "metrics: {port: 9401}", "", "metrics.pluginPort"},
		"label of the chart for all objects": {image + "commonLabels: {app.kubernetes.io/instance: x}", schema, "/commonLabels"},
		"existing ConfigMap with a key":      {image + "config: {existing: a, replicas: 2}", schema, "/config"},
		"existing ConfigMap and inventory":   {image + "config: {existing: a}\ninventory: 'devices: []'", "", "inventory and config.existing"},
		"arguments of a pool for cmd.exe":    {image + "nodePools: {pools: {a: {extraArgs: {advertiser: ['a & b']}}}}", schema, "/nodePools/pools/a/extraArgs"},
		"labels for Server 2019":             {image + "windows: {labels: true, server2019: true}", "", "windows.labels"},
		"PodMonitor without metrics":         {image + "metrics: {podMonitor: {enabled: true}}", "", "metrics.enabled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, stderr, err := template(t, test.values)
			if err == nil || !strings.Contains(stderr, test.want) || !strings.Contains(stderr, test.by) {
				t.Errorf("%v: %s\nwant %s", err, stderr, test.want)
			}
		})
	}
}

// The configuration of a pool is merged over that of its operating system, and this over
// the common one; a text, an existing ConfigMap and an inventory replace them. A null value
// removes a default. Files are rendered unchanged. A chart that includes this one can set
// global values, and enabled as a condition.
func TestConfigMaps(t *testing.T) {
	t.Parallel()
	read := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	const image, linux = "image: {repository: a}\n", "image: {repository: a}\nwindows: {enabled: false}\n"
	tests := map[string]struct {
		values string
		want   map[string]string // a part of a file of the ConfigMaps
		args   []string
	}{
		"configuration": {
			values: image + "config: {replicas: 2, failOnInitError: true, log: {level: debug}, resources: [{name: a.b/c}]}\n" +
				"windows: {config: {replicas: 3}}\nnodePools: {pools: {p: {config: {failOnInitError: false, log: {format: json}, resources: [{name: a.b/d}]}}}}",
			want: map[string]string{
				"directx-nri-windows config.yaml":   "failOnInitError: true\nkind: Configuration\nlog:\n  level: debug\nreplicas: 3\nresources:\n- name: a.b/c",
				"directx-nri-windows-p config.yaml": "failOnInitError: false\nkind: Configuration\nlog:\n  format: json\n  level: debug\nreplicas: 3\nresources:\n- name: a.b/d",
			},
		},
		"configurations that replace": {
			values: image + "config: {replicas: 2}\nwindows: {config: {existing: mine}}\nnodePools: {pools: {p: {os: windows, config: {failOnInitError: true}}}}\n" +
				"linux: {enabled: true, config: {existing: mine, injection: kubelet}}",
			want: map[string]string{
				"directx-nri-windows config.yaml": "", "directx-nri-linux config.yaml": "",
				"directx-nri-windows-p config.yaml": "directx.microsoft.com/v1alpha1\nfailOnInitError: true\nkind: Configuration",
			},
		},
		"inventory": {
			values: linux + "inventory: 'a: 1'\nlinux: {enabled: true}\nnodePools: {pools: {p: {inventory: 'a: 2'}}}",
			want:   map[string]string{"directx-nri-linux inventory.yaml": "a: 1", "directx-nri-linux-p inventory.yaml": "a: 2"},
		},
		"file in place of an inventory": {
			values: linux + "inventory: 'a: 1'\nlinux: {enabled: true, inventory: '', config: {inventory: /etc/directx-nri/a}}",
			want:   map[string]string{"directx-nri-linux config.yaml": "inventory: /etc/directx-nri/a", "directx-nri-linux inventory.yaml": ""},
		},
		"inventory for the node's own configuration": {
			values: linux + "config: null\nlinux: {enabled: true, inventory: 'a: 1'}",
			want:   map[string]string{"directx-nri-linux config.yaml": "", "directx-nri-linux inventory.yaml": "a: 1"},
		},
		"files": {
			values: image, args: []string{"--set-file", "config=config/windows.yaml", "--set-file", "windows.inventory=inventory/windows-g4dn.yaml"},
			want: map[string]string{"directx-nri-windows config.yaml": read("config/windows.yaml"), "directx-nri-windows inventory.yaml": read("inventory/windows-g4dn.yaml")},
		},
		"mapping over a file": {values: image + "config: |\n  apiVersion: directx.microsoft.com/v1alpha1\n  kind: Configuration\n  injection: kubelet\nwindows: {config: {replicas: 3}}", want: map[string]string{"directx-nri-windows config.yaml": "injection: kubelet\nkind: Configuration\nreplicas: 3"}},
		"subchart":            {values: image + "global: {a: b}\nenabled: true", want: map[string]string{"directx-nri-windows config.yaml": "kind: Configuration"}},
		"null": {values: image +
			"windows: {nodeSelector: , tolerations: , affinity: , resources: , updateStrategy: , podAnnotations: , podLabels: , config: , inventory: , extraEnv: , extraArgs: }\n" +
			"linux: {enabled: true, config: {inventory: /etc/directx-nri/a}, podSecurityContext: , containerSecurityContext: }\ncommonLabels:\ncommonAnnotations:"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			decoded, err := decode([]byte(mustTemplate(t, test.values, test.args...)))
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, o := range decoded {
				if m, ok := o.(*corev1.ConfigMap); ok {
					for key, text := range m.Data {
						got[m.Name+" "+key] = text
					}
				}
			}
			for key, want := range test.want {
				if text, ok := got[key]; ok != (want != "") || !strings.Contains(text, want) {
					t.Errorf("%s is %q, want %q", key, text, want)
				}
			}
		})
	}
}

// Clusters before 1.30 have no labels of Windows nodes. Older than 1.28 are refused.
func TestKubernetesVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"1.29.3": "windows.labels", "1.27.0": ">=1.28.0-0"} {
		if _, stderr, err := template(t, "image: {repository: a}\nwindows: {labels: true}", "--kube-version", version); err == nil || !strings.Contains(stderr, want) {
			t.Errorf("%s: %v: %s", version, err, stderr)
		}
	}
}
