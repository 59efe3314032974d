//go:build chart && unix

package deployments

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
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

// rendered returns the objects of one type that the chart renders from values.
func rendered[T any](t *testing.T, values string, args ...string) (found []T) {
	t.Helper()
	stdout, stderr, err := template(t, values, args...)
	if err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	decoded, err := decode([]byte(stdout))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range decoded {
		if object, ok := o.(T); ok {
			found = append(found, object)
		}
	}
	return found
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
			stdout, stderr, err := helm(t, "template", "directx-nri", chart, "--namespace", "directx-nri", "--set", "image.repository=directx-nri", "--values", file)
			if err != nil || stderr != "" {
				t.Fatalf("%s: %v: %s", file, err, stderr)
			}
			renderedValues.texts[filepath.Base(file)] = []byte(stdout)
		}
	})
	return renderedValues.texts
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

// The schema refuses wrong values and names them.
func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ values, want string }{
		"unknown key":                         {"windwos: {enabled: true}", "windwos"},
		"unknown nested key":                  {"windows: {server2022: true}", "server2022"},
		"arguments of an unknown container":   {"windows: {extraArgs: {nri: [--log-level=debug]}}", "'nri'"},
		"invalid port":                        {"metrics: {port: 0}", "/metrics/port"},
		"digest that is not SHA-256":          {"image: {digest: sha1:abc}", "/image/digest"},
		"unknown key of the configuration":    {"config: {replica: 4}", "replica"},
		"invalid configuration":               {"config: {replicas: 0}", "/config/replicas"},
		"the same for a pool":                 {"nodePools: {pools: {a: {config: {log: {level: loud}}}}}", "/nodePools/pools/a/config/log/level"},
		"list for a configuration":            {"config: [a]", "/config"},
		"mapping for an inventory":            {"inventory: {devices: []}", "/inventory"},
		"pool of an unknown operating system": {"nodePools: {pools: {a: {os: darwin}}}", "/nodePools/pools/a/os"},
		"pool name in capitals":               {"nodePools: {pools: {Big: {}}}", "Big"},
		"relative path":                       {"linux: {containerd: {configFile: config.toml}}", "/linux/containerd/configFile"},
		"character that cmd.exe interprets":   {`windows: {extraArgs: {install: ["--to=C:\\a & b"]}}`, "/windows/extraArgs/install/0"},
		"label value that is not a string":    {"linux: {nodeSelector: {gpu: true}}", "/linux/nodeSelector/gpu"},
		"label of the chart":                  {"windows: {podLabels: {app.kubernetes.io/name: x}}", "/windows/podLabels"},
		"annotation of the chart":             {"windows: {podAnnotations: {kubectl.kubernetes.io/default-container: x}}", "/windows/podAnnotations"},
		"operating system":                    {"windows: {nodeSelector: {kubernetes.io/os: linux}}", "/windows/nodeSelector"},
		"way to restart containerd":           {"windows: {restart: reboot}", "/windows/restart"},
		"duration":                            {"restartSpread: soon", "/restartSpread"},
		"interval":                            {"metrics: {podMonitor: {interval: often}}", "/metrics/podMonitor/interval"},
		"second pod on a node":                {"windows: {updateStrategy: {rollingUpdate: {maxSurge: 1}}}", "maxSurge"},
		"empty section":                       {"nodePools:", "nodePools"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, stderr, err := template(t, test.values, "--set", "image.repository=directx-nri")
			if err == nil || !strings.Contains(stderr, test.want) || !strings.Contains(stderr, "schema") {
				t.Errorf("%v: %s\nwant %s", err, stderr, test.want)
			}
		})
	}
}

// The templates refuse contradictory values and name the one to change.
func TestTemplatesRefuse(t *testing.T) {
	t.Parallel()
	const image, linux = "image: {repository: a}\n", "image: {repository: a}\nwindows: {enabled: false}\n"
	for name, test := range map[string]struct{ values, want string }{
		"no image":                           {"", "image.repository"},
		"image with its tag":                 {"image: {repository: 'a.b:5000/c:1'}", "image.tag"},
		"no operating system":                {image + "windows: {enabled: false}", "windows.enabled and linux.enabled"},
		"Linux without an inventory":         {linux + "linux: {enabled: true}", "linux.inventory=FILE"},
		"two inventories":                    {image + "config: {inventory: 'C:\\a'}\ninventory: 'devices: []'", "inventory and config.inventory"},
		"inventory that the pod cannot read": {linux + "linux: {enabled: true, config: {inventory: /srv/a}}", "linux.config.inventory"},
		"device that the pod cannot see":     {linux + "linux: {enabled: true, inventory: 'devices: [{linux: {deviceNodes: [{path: /opt/dxg}]}}]'}", "/opt/dxg is in none of linux.hostPaths"},
		"library that the pod cannot see":    {linux + "linux: {enabled: true, inventory: 'devices: [{linux: {libraries: [/usr/library/a]}}]'}", "/usr/library/a"},
		"Server 2019 and location paths":     {image + "windows: {server2019: true}\nconfig: {assignmentMode: location-path}", "windows.server2019"},
		"the same in a pool":                 {image + "windows: {server2019: true}\nnodePools: {pools: {a: {config: {assignmentMode: location-path}}}}", "nodePools.pools.a.config.assignmentMode"},
		"metrics in the configuration":       {image + "config: {metrics: {address: ':1'}}", "metrics.port"},
		"servedBy in the configuration":      {image + "config: {servedBy: shim}", "config.servedBy"},
		"text that is not YAML":              {image + "config: 'a: ['", "config is not valid YAML"},
		"incomplete text":                    {image + "config: 'replicas: 2'", "apiVersion"},
		"node in two pools":                  {image + "nodePools: {pools: {a: {values: [x]}, b: {values: [x]}}}", "two pools"},
		"pool that is not served":            {image + "nodePools: {pools: {a: {os: linux}}}", "nodePools.pools.a.os"},
		"handlers and a RuntimeClass":        {image + "runtimeClass: {enabled: true}\nwindows: {handlers: [a]}", "windows.handlers and runtimeClass.enabled"},
		"handlers that are not configured":   {image + "windows: {handlers: [a], configureContainerd: false}", "windows.configureContainerd"},
		"handlers without the shim":          {image + "linux: {enabled: true, handlers: [a], config: {inventory: /etc/directx-nri/a}}", "linux.shim.enabled"},
		"RuntimeClass without the shim":      {linux + "linux: {enabled: true, config: {inventory: /etc/directx-nri/a}}\nruntimeClass: {enabled: true}", "linux.shim.enabled"},
		"the same port twice":                {image + "metrics: {port: 9401}", "metrics.pluginPort"},
		"PodMonitor without metrics":         {image + "metrics: {podMonitor: {enabled: true}}", "metrics.enabled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, stderr, err := template(t, test.values)
			if err == nil || !strings.Contains(stderr, test.want) {
				t.Errorf("%v: %s\nwant %s", err, stderr, test.want)
			}
		})
	}
}

// A null value removes a default.
func TestNullValues(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"nodeSelector", "tolerations", "affinity", "handlers", "resources", "updateStrategy", "podAnnotations", "podLabels", "config", "inventory"} {
		rendered[*appsv1.DaemonSet](t, "image: {repository: a}\nwindows:\n  "+key+":\n")
	}
}

// A chart that includes this one can set global values, and enabled as a condition.
func TestSubchart(t *testing.T) {
	t.Parallel()
	rendered[*appsv1.DaemonSet](t, "global: {a: b}\nenabled: true\nimage: {repository: a}")
}

// The values of a pool replace those of its operating system, and these the common ones.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	const linux = "image: {repository: a}\nwindows: {enabled: false}\n"
	for name, test := range map[string]struct {
		values string
		want   map[string]string // a part of a file of the ConfigMaps
	}{
		"configuration": {
			"image: {repository: a}\nconfig: {replicas: 2}\nwindows: {config: {replicas: 3}}\nnodePools: {pools: {p: {config: {replicas: 4}}}}",
			map[string]string{"directx-nri-windows config.yaml": "replicas: 3", "directx-nri-windows-p config.yaml": "replicas: 4"},
		},
		"inventory": {
			linux + "inventory: 'a: 1'\nlinux: {enabled: true}\nnodePools: {pools: {p: {inventory: 'a: 2'}}}",
			map[string]string{"directx-nri-linux inventory.yaml": "a: 1", "directx-nri-linux-p inventory.yaml": "a: 2"},
		},
		"file in place of an inventory": {
			linux + "inventory: 'a: 1'\nlinux: {enabled: true, inventory: '', config: {inventory: /etc/directx-nri/a}}",
			map[string]string{"directx-nri-linux config.yaml": "inventory: /etc/directx-nri/a", "directx-nri-linux inventory.yaml": ""},
		},
		"inventory for the node's own configuration": {
			linux + "config: null\nlinux: {enabled: true, inventory: 'a: 1'}",
			map[string]string{"directx-nri-linux config.yaml": "", "directx-nri-linux inventory.yaml": "a: 1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := map[string]string{}
			for _, m := range rendered[*corev1.ConfigMap](t, test.values) {
				for key, text := range m.Data {
					got[m.Name+" "+key] = text
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

// The node's own directory is mounted only if the advertiser reads files there.
func TestNodeFiles(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]bool{"nodefiles.yaml": true, "linux-k3s.yaml": true, "linux-shim.yaml": false, "manifests/linux.yaml": false} {
		for _, s := range sets(t) {
			if s.file == file && !s.windows() && slices.ContainsFunc(s.pod().Volumes, func(v corev1.Volume) bool { return v.Name == "node-settings" }) != want {
				t.Errorf("%s: volumes %v", s, s.pod().Volumes)
			}
		}
	}
}

// Files are rendered unchanged.
func TestSetFile(t *testing.T) {
	t.Parallel()
	files := map[string]string{"config.yaml": "config/windows.yaml", "inventory.yaml": "inventory/windows-g4dn.yaml"}
	for _, m := range rendered[*corev1.ConfigMap](t, "image: {repository: a}", "--set-file", "config="+files["config.yaml"], "--set-file", "windows.inventory="+files["inventory.yaml"]) {
		for key, file := range files {
			if want, err := os.ReadFile(file); err != nil || strings.TrimSpace(m.Data[key]) != strings.TrimSpace(string(want)) {
				t.Errorf("%s is not %s (%v):\n%s", key, file, err, m.Data[key])
			}
		}
	}
}

// A changed configuration does not replace pods, unless they get other containers.
func TestReplacedPods(t *testing.T) {
	t.Parallel()
	render := func(values string) string {
		stdout, stderr, err := template(t, "image: {repository: directx-nri}\n"+values, "--show-only", "templates/windows.yaml")
		if err != nil {
			t.Fatalf("%v: %s", err, stderr)
		}
		return stdout
	}
	before := render("")
	for values, want := range map[string]bool{
		"config: {replicas: 4, failOnInitError: true, log: {level: debug}}": false,
		"config: {inventory: 'C:\\a'}":                                      false,
		"config: {injection: kubelet}":                                      true,
		"metrics: {service: {annotations: {a: b}}}":                         false,
	} {
		if got := render(values) != before; got != want {
			t.Errorf("%s: new pods: %v", values, got)
		}
	}
}

// Clusters before 1.30 have AppArmor profiles in annotations. Older than 1.28 are refused.
func TestKubernetesVersions(t *testing.T) {
	t.Parallel()
	const linux = "image: {repository: a}\nwindows: {enabled: false}\nlinux: {enabled: true, config: {inventory: /etc/directx-nri/a}}"
	for _, restore := range []string{"false", "true"} {
		for _, s := range rendered[*appsv1.DaemonSet](t, linux, "--kube-version", "1.29.3", "--set", "restore="+restore) {
			for _, c := range (set{DaemonSet: s}).containers() {
				got := s.Spec.Template.Annotations["container.apparmor.security.beta.kubernetes.io/"+c.Name]
				if signals := slices.Contains(c.Args, "--restart-mode=signal"); (got == "unconfined") != signals || c.SecurityContext.AppArmorProfile != nil {
					t.Errorf("%s: annotation %q, field %v", c.Name, got, c.SecurityContext.AppArmorProfile)
				}
			}
		}
	}
	if _, stderr, err := template(t, "image: {repository: a}", "--kube-version", "1.27.0"); err == nil || !strings.Contains(stderr, ">=1.28.0-0") {
		t.Errorf("%v: %s", err, stderr)
	}
}

// The chart's requirements for nodes are in each term of the user's affinity.
func TestAffinity(t *testing.T) {
	t.Parallel()
	const (
		release2022 = `"node.kubernetes.io/windows-build" NotIn [10.0.17763 10.0.18362 10.0.18363 10.0.19041 10.0.19042]`
		release2019 = `"node.kubernetes.io/windows-build" NotIn [10.0.18362 10.0.18363 10.0.19041 10.0.19042]`
		group, zone = `"eks.amazonaws.com/nodegroup" `, `, "zone" In [a]`
	)
	want := map[string][]string{ // the terms by file and DaemonSet
		"server2019.yaml directx-nri-windows":                {release2019},
		"metrics.yaml directx-nri-windows":                   {release2022},
		"metrics.yaml directx-nri-linux":                     nil,
		"pools.yaml directx-nri-windows":                     {release2022 + ", " + group + "NotIn [plain render-A render-B]" + zone, release2022 + ", " + group + "NotIn [plain render-A render-B]"},
		"pools.yaml directx-nri-windows-render":              {release2022 + ", " + group + "In [render-A render-B]" + zone, release2022 + ", " + group + "In [render-A render-B]"},
		"pools.yaml directx-nri-linux":                       {group + "NotIn [plain train]"},
		"pools.yaml directx-nri-linux-train":                 {group + "In [train]"},
		"manifests/restore-windows.yaml directx-nri-windows": {release2019},
	}
	for _, s := range sets(t) {
		var got []string
		if affinity := s.pod().Affinity; affinity != nil {
			for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
				var parts []string
				for _, e := range term.MatchExpressions {
					parts = append(parts, fmt.Sprintf("%q %s %v", e.Key, e.Operator, e.Values))
				}
				got = append(got, strings.Join(parts, ", "))
			}
		}
		if want, ok := want[s.file+" "+s.Name]; ok && !slices.Equal(got, want) {
			t.Errorf("%s: affinity\n%q, want\n%q", s, got, want)
		}
	}
}

// Service, PodMonitor and NetworkPolicy name the ports of the pods.
func TestMetrics(t *testing.T) {
	t.Parallel()
	const file = "metrics.yaml"
	all := objects(t)
	ports := map[string]int32{}
	for _, s := range sets(t) {
		for _, c := range s.containers() {
			for _, port := range c.Ports {
				if s.file == file {
					ports[port.Name] = port.ContainerPort
				}
			}
		}
	}
	if want := map[string]int32{"metrics": 9500, "plugin-metrics": 9501}; !maps.Equal(ports, want) {
		t.Fatalf("ports are %v, want %v", ports, want)
	}
	got := map[string][]string{}
	for s, in := range ofType[corev1.Service](all) {
		for _, port := range s.Spec.Ports {
			got["Service of "+in] = append(got["Service of "+in], port.TargetPort.StrVal)
		}
	}
	for m, in := range ofType[podMonitor](all) {
		for _, e := range m.Spec.PodMetricsEndpoints {
			got["PodMonitor of "+in] = append(got["PodMonitor of "+in], e.Port)
		}
	}
	for p, in := range ofType[networkingv1.NetworkPolicy](all) {
		for _, rule := range p.Spec.Ingress {
			for _, port := range rule.Ports {
				got["NetworkPolicy of "+in] = append(got["NetworkPolicy of "+in], port.Port.StrVal)
			}
		}
		if len(p.Spec.Egress) > 0 {
			t.Errorf("%s: egress %v", in, p.Spec.Egress)
		}
	}
	want := map[string][]string{}
	for _, kind := range []string{"Service of ", "PodMonitor of ", "NetworkPolicy of "} {
		want[kind+file] = []string{"metrics", "plugin-metrics"}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("ports are %v, want %v", got, want)
	}
}
