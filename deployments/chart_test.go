//go:build chart && unix

package deployments

import (
	"bytes"
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"directx-nri/discovery"
	"directx-nri/discovery/inventory"
)

const chart = "helm/directx-nri"

// helmProgram is the helm that test/parts/build.sh has built.
func helmProgram(t *testing.T) string {
	t.Helper()
	program, err := filepath.Abs(filepath.Join(cmp.Or(os.Getenv("DIRECTX_NRI_PARTS"), "../.parts/bin"), "helm"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v; build it with: test/parts/build.sh helm", err)
	}
	return program
}

// helm runs it.
func helm(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	c := exec.Command(helmProgram(t), args...)
	// Nothing of the user's, and no cluster.
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

// rendered returns the objects of one type, such as all DaemonSets, that the chart
// makes of values.
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

func TestLint(t *testing.T) {
	t.Parallel()
	for _, file := range append(valueFiles(t), chart+"/values.yaml") {
		stdout, stderr, err := helm(t, "lint", "--strict", chart, "--namespace", "directx-nri", "--values", file)
		if err != nil || strings.Contains(stdout, "[WARNING]") {
			t.Errorf("%s: %v\n%s%s", file, err, stdout, stderr)
		}
	}
}

// The committed files are what the chart renders.
func TestRenderedFilesAreCurrent(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, part := range []string{"helm", "manifests"} {
		if err := os.CopyFS(filepath.Join(folder, part), os.DirFS(part)); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("sh", filepath.Join(folder, "helm/render.sh"), helmProgram(t)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := exec.Command("diff", "-ru", "manifests", filepath.Join(folder, "manifests")).CombinedOutput(); err != nil {
		t.Errorf("run `make generate`: %s", out)
	}
	if out, err := exec.Command("diff", "-ru", "helm/testdata/rendered", filepath.Join(folder, "helm/testdata/rendered")).CombinedOutput(); err != nil {
		t.Errorf("run `make generate`: %s", out)
	}
}

// Values that cannot be meant are refused, by name.
func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ values, want string }{
		"an unknown key":                         {"windwos: {enabled: true}", "additional properties 'windwos' not allowed"},
		"an unknown key further in":              {"windows: {server2022: true}", "'/windows': additional properties 'server2022' not allowed"},
		"a container that there is not":          {"windows: {extraArgs: {nri: [--log-level=debug]}}", "additional properties 'nri' not allowed"},
		"a text for a switch":                    {"windows: {enabled: 'yes'}", "'/windows/enabled': got string, want boolean"},
		"a port that is none":                    {"metrics: {port: 0}", "'/metrics/port': minimum: got 0, want 1"},
		"a pull policy that is none":             {"image: {pullPolicy: Sometimes}", "'/image/pullPolicy': value must be one of"},
		"a digest of another kind":               {"image: {digest: sha1:abc}", "'/image/digest': 'sha1:abc' does not match pattern"},
		"an unknown key of the configuration":    {"config: {replica: 4}", "'/config': additional properties 'replica' not allowed"},
		"a value that it cannot have":            {"config: {replicas: 0}", "'/config/replicas': minimum: got 0, want 1"},
		"the same for one system":                {"windows: {config: {assignmentMode: all}}", "'/windows/config/assignmentMode': value must be one of"},
		"the same for a pool":                    {"nodePools: {pools: {a: {config: {log: {level: loud}}}}}", "'/nodePools/pools/a/config/log/level': value must be one of"},
		"a preset and rules":                     {"config: {preset: tensorworks, resources: [{name: a.b/c}]}", "'/config': 'not' failed"},
		"a list for a configuration":             {"config: [a]", "'/config': got array, want string"},
		"a list for an inventory":                {"inventory: [a]", "'/inventory': got array, want null or string or object"},
		"a pool of another system":               {"nodePools: {pools: {a: {os: darwin}}}", "'/nodePools/pools/a/os': value must be one of 'windows', 'linux'"},
		"a pool's name in capitals":              {"nodePools: {pools: {Big: {}}}", "'Big' does not match pattern"},
		"a relative path":                        {"linux: {containerd: {configFile: config.toml}}", "'/linux/containerd/configFile': 'config.toml' does not match pattern"},
		"what cmd.exe would take for its own":    {`windows: {extraArgs: {install: ["--to=C:\\a & b"]}}`, "'/windows/extraArgs/install/0'"},
		"a label that is no text":                {"linux: {nodeSelector: {gpu: true}}", "'/linux/nodeSelector/gpu': got boolean, want string"},
		"a handler's name":                       {"windows: {handlers: ['a b']}", "'/windows/handlers/0': 'a b' does not match pattern"},
		"a secret without a name":                {"imagePullSecrets: [registry]", "'/imagePullSecrets/0': got string, want object"},
		"an interval":                            {"metrics: {podMonitor: {interval: often}}", "'/metrics/podMonitor/interval': 'often' does not match pattern"},
		"a second pod on a node":                 {"windows: {updateStrategy: {rollingUpdate: {maxSurge: 1}}}", "'/windows/updateStrategy/rollingUpdate': additional properties 'maxSurge' not allowed"},
		"a section without a line":               {"nodePools:", "missing property 'nodePools'"},
		"a section of a system without a line":   {"linux: {shim: }", "'/linux': missing property 'shim'"},
		"resources that a container cannot have": {"linux: {resources: {limit: {memory: 1Gi}}}", "'/linux/resources': additional properties 'limit' not allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, stderr, err := template(t, test.values, "--set", "image.repository=directx-nri")
			if err == nil || !strings.Contains(stderr, test.want) {
				t.Errorf("%v: %s\nwant %s", err, stderr, test.want)
			}
		})
	}
}

// Values that do not go together are refused, with what to do.
func TestTemplateRefuses(t *testing.T) {
	t.Parallel()
	const image = "image: {repository: directx-nri}\n"
	for name, test := range map[string]struct{ values, want string }{
		"no image":                     {"", "image.repository must be set: push the archive of `make images`"},
		"an image with its tag":        {"image: {repository: 'a.b:5000/c:1'}", "put the tag into image.tag"},
		"nothing to do":                {image + "windows: {enabled: false}", "windows.enabled and linux.enabled are both false"},
		"Linux without an inventory":   {image + "linux: {enabled: true}", "--set-file linux.inventory=FILE"},
		"two inventories":              {image + "config: {inventory: 'C:\\a'}\ninventory: {devices: [{instanceID: a}]}", "leave one out"},
		"2019 and location paths":      {image + "windows: {server2019: true}\nconfig: {assignmentMode: location-path}", "windows.server2019"},
		"the same in a pool":           {image + "windows: {server2019: true}\nnodePools: {pools: {a: {config: {assignmentMode: location-path}}}}", "nodePools.pools.a.config.assignmentMode is location-path"},
		"a configuration nobody reads": {image + "manageConfig: false\nconfig: {replicas: 2}", "manageConfig is false, so nobody would read config"},
		"an inventory nobody reads":    {image + "manageConfig: false\nwindows: {inventory: {devices: [{instanceID: a}]}}", "nobody would read windows.inventory"},
		"another state folder":         {image + "config: {stateDir: /srv}", "config.stateDir cannot be set by the chart"},
		"metrics by the configuration": {image + "config: {metrics: {address: ':1'}}", "set the chart's metrics.port"},
		"a socket by the configuration": {
			image + "windows: {enabled: false}\nlinux: {enabled: true, config: {inventory: /a, containerd: {criSocket: /b}}}", "set linux.containerd.criSocket",
		},
		"a text that is no YAML":          {image + "config: 'a: ['", "config is no YAML"},
		"a text that is no whole file":    {image + "config: 'replicas: 2'", "config is a text without apiVersion"},
		"a hexadecimal number":            {image + "inventory: {devices: [{instanceID: a, luid: 0xC2F5}]}", "--set-file inventory=FILE"},
		"a vendor's number":               {image + "config: {resources: [{name: a.b/c, match: {vendor: 0x1A03}}]}", "quote it, as in '0x10DE'"},
		"a vendor's number in a list":     {image + "config: {resources: [{name: a.b/c, match: {vendor: [nvidia, 0x1A03]}}]}", "quote it, as in '0x10DE'"},
		"a node in two pools":             {image + "nodePools: {pools: {a: {values: [x]}, b: {values: [x]}}}", "are in two pools"},
		"a pool that nobody serves":       {image + "nodePools: {pools: {a: {os: linux}}}", "nodePools.pools.a.os is linux and linux.enabled is false"},
		"handlers and one of its own":     {image + "runtimeClass: {enabled: true}\nwindows: {handlers: [a]}", "set one of them"},
		"handlers of nobody":              {image + "windows: {handlers: [a], configureContainerd: false}", "nobody would configure them"},
		"handlers without the shim":       {image + "linux: {enabled: true, handlers: [a], config: {inventory: /a}}", "linux.shim.enabled is false"},
		"a RuntimeClass without the shim": {image + "windows: {enabled: false}\nlinux: {enabled: true, config: {inventory: /a}}\nruntimeClass: {enabled: true}", "enable linux.shim"},
		"one port for two":                {image + "metrics: {port: 9401}", "metrics.port and metrics.pluginPort are the same"},
		"a PodMonitor of nothing":         {image + "metrics: {podMonitor: {enabled: true}}", "set metrics.enabled too"},
		"a label of the chart's":          {image + "windows: {podLabels: {app.kubernetes.io/name: x}}", "is set by the chart"},
		"an annotation of the chart's":    {image + "windows: {podAnnotations: {kubectl.kubernetes.io/default-container: x}}", "is set by the chart"},
		"the operating system":            {image + "windows: {nodeSelector: {kubernetes.io/os: linux}}", "kubernetes.io/os is set by the chart"},
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

// What a key without a value takes away is not needed.
func TestKeysWithoutValue(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"nodeSelector", "tolerations", "affinity", "handlers", "resources", "updateStrategy", "podAnnotations", "podLabels", "config", "inventory"} {
		stdout, stderr, err := template(t, "image: {repository: a}\nwindows:\n  "+key+":\n")
		if err != nil {
			t.Errorf("%s: %v: %s", key, err, stderr)
			continue
		}
		if _, err := decode([]byte(stdout)); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// A chart that this one is a part of may have it or not by a condition, which is
// usually the value enabled.
func TestPartOfAnother(t *testing.T) {
	t.Parallel()
	whole := t.TempDir()
	if err := os.CopyFS(filepath.Join(whole, "charts", "directx-nri"), os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"Chart.yaml":  "apiVersion: v2\nname: whole\nversion: 1.0.0\ndependencies: [{name: directx-nri, version: '*', condition: directx-nri.enabled}]\n",
		"values.yaml": "global: {cluster: a}\ndirectx-nri: {enabled: true, image: {repository: directx-nri}}\n",
	} {
		if err := os.WriteFile(filepath.Join(whole, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for enabled, want := range map[string]bool{"true": true, "false": false} {
		stdout, stderr, err := helm(t, "template", "whole", whole, "--set", "directx-nri.enabled="+enabled)
		if err != nil || strings.Contains(stdout, "name: whole-directx-nri-windows\n") != want {
			t.Errorf("enabled %s: %v: %s%s", enabled, err, stderr, stdout)
		}
	}
}

// Which inventory counts is said by who is nearest to the node.
func TestInventoryOfTheNearest(t *testing.T) {
	t.Parallel()
	const linux = "image: {repository: a}\nwindows: {enabled: false}\n"
	for name, test := range map[string]struct {
		values string
		want   []string // of each ConfigMap: what its inventory.yaml is, or the file that its config.yaml names
	}{
		"a file of the system's": {linux + "inventory: {devices: [{instanceID: all}]}\nlinux: {enabled: true, config: {inventory: /a}}", []string{"/a"}},
		"a file of a pool's": {
			linux + "linux: {enabled: true, inventory: {devices: [{instanceID: all}]}}\nnodePools: {pools: {p: {config: {inventory: /p}}}}", []string{"instanceID: all", "/p"},
		},
		"an inventory of a pool's": {
			linux + "linux: {enabled: true, config: {inventory: /a}}\nnodePools: {pools: {p: {inventory: {devices: [{instanceID: p}]}}}}", []string{"/a", "instanceID: p"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			maps := rendered[*corev1.ConfigMap](t, test.values)
			if len(maps) != len(test.want) {
				t.Fatal(maps)
			}
			for i, want := range test.want {
				configuration, described := maps[i].Data["config.yaml"], maps[i].Data["inventory.yaml"]
				file := "/etc/directx-nri/inventory.yaml"
				if strings.HasPrefix(want, "/") {
					file, want = want, ""
				}
				if !strings.Contains(configuration, "inventory: "+file+"\n") || !strings.Contains(described, want) || (want == "") != (described == "") {
					t.Errorf("%s: %v, want %s%s", maps[i].Name, maps[i].Data, file, want)
				}
			}
		})
	}
}

// Helm makes a decimal number of a vendor's, and the node reads it as what was meant.
func TestVendorsOfTheInventory(t *testing.T) {
	t.Parallel()
	maps := rendered[*corev1.ConfigMap](t, "image: {repository: a}\ninventory: {devices: [{instanceID: a, vendorID: 0x10DE}, {instanceID: b, vendorID: '0x10DE', luid: '0xC2F5'}]}")
	for _, m := range maps {
		if m.Data["inventory.yaml"] == "" {
			continue
		}
		devices, err := inventory.Parse("inventory.yaml", []byte(m.Data["inventory.yaml"]))
		if err != nil || len(devices) != 2 || devices[0].VendorID != discovery.VendorNVIDIA || devices[1].VendorID != discovery.VendorNVIDIA || devices[1].LUID != 0xC2F5 {
			t.Errorf("%+v, %v\n%s", devices, err, m.Data["inventory.yaml"])
		}
		return
	}
	t.Errorf("there is no inventory in %v", maps)
}

// Both of containerd's sockets may be in one folder, which a container has once.
func TestSocketsInOneFolder(t *testing.T) {
	t.Parallel()
	for _, s := range rendered[*appsv1.DaemonSet](t, "image: {repository: a}\nwindows: {enabled: false}\nlinux: {enabled: true, config: {inventory: /a}, containerd: {nriSocket: /run/containerd/nri.sock}}") {
		for _, c := range (set{DaemonSet: s}).containers() {
			at := map[string]bool{}
			for _, mount := range c.VolumeMounts {
				if at[mount.MountPath] {
					t.Errorf("%s: two volumes at %s", c.Name, mount.MountPath)
				}
				at[mount.MountPath] = true
			}
			if (c.Name == "nri" || c.Name == "advertiser") && !at["/run/containerd"] {
				t.Errorf("%s: %v", c.Name, at)
			}
		}
	}
}

// A sample is given as a file is.
func TestFilesOfTheUser(t *testing.T) {
	t.Parallel()
	stdout, stderr, err := helm(t, "template", "r", chart, "--set", "image.repository=directx-nri", "--set", "linux.enabled=true",
		"--set-file", "config=config/windows.yaml", "--set-file", "linux.inventory=inventory/linux-gpu-pv.yaml", "--set-file", "windows.inventory=inventory/windows-g4dn.yaml")
	if err != nil || stderr != "" {
		t.Fatalf("%v: %s", err, stderr)
	}
	for _, want := range []string{"name: r-directx-nri-windows\n", "name: example.com/t4\n", "vendorID: 0x10DE", "libraries:", "runtimeFiles: *t4-files"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("there is no %s in %s", want, stdout)
		}
	}
}

// A change of the configuration takes new pods where a program has to be started
// anew for it, and nowhere else.
func TestPodsAreReplacedWhenTheyHaveTo(t *testing.T) {
	t.Parallel()
	render := func(values string) string {
		stdout, stderr, err := template(t, "image: {repository: directx-nri}\n"+values)
		if err != nil {
			t.Fatalf("%v: %s", err, stderr)
		}
		_, pods, ok := strings.Cut(stdout, "\n  template:")
		if !ok {
			t.Fatal(stdout)
		}
		return pods
	}
	before := render("")
	for values, want := range map[string]bool{
		"config: {replicas: 4}":                                     false,
		"config: {log: {level: debug}}":                             false,
		"config: {failOnInitError: true}":                           true,
		"config: {kubelet: {podResourcesSocket: '\\\\.\\pipe\\a'}}": true,
		"inventory: {devices: [{instanceID: a}]}":                   true,
		"metrics: {service: {annotations: {a: b}}}":                 false,
	} {
		if got := render(values) != before; got != want {
			t.Errorf("%s: new pods: %v", values, got)
		}
	}
}

// A cluster before 1.30 has AppArmor in annotations, and one before 1.28 is
// refused.
func TestKubernetesVersions(t *testing.T) {
	t.Parallel()
	for _, restore := range []string{"false", "true"} {
		for _, s := range rendered[*appsv1.DaemonSet](t, "image: {repository: a}\nwindows: {enabled: false}\nlinux: {enabled: true, config: {inventory: /a}}", "--kube-version", "1.29.3", "--set", "restore="+restore) {
			for _, c := range (set{DaemonSet: s}).containers() {
				got := s.Spec.Template.Annotations["container.apparmor.security.beta.kubernetes.io/"+c.Name]
				if unconfined := strings.Contains(strings.Join(c.Args, " "), "--restart-mode=signal"); (got == "unconfined") != unconfined || c.SecurityContext.AppArmorProfile != nil {
					t.Errorf("%s: %q %v", c.Name, got, c.SecurityContext.AppArmorProfile)
				}
			}
		}
	}
	if _, stderr, err := template(t, "image: {repository: a}", "--kube-version", "1.27.0"); err == nil || !strings.Contains(stderr, ">=1.28.0-0") {
		t.Errorf("%v: %s", err, stderr)
	}
}

// The notes name what there is. helm shows them where there is a cluster alone, and
// so an object of a copy of the chart has them.
func TestNotes(t *testing.T) {
	t.Parallel()
	copied := filepath.Join(t.TempDir(), "directx-nri")
	if err := os.CopyFS(copied, os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	text := "notes: |\n{{ include (print $.Template.BasePath \"/NOTES.txt\") . | indent 2 }}\n"
	if err := os.WriteFile(filepath.Join(copied, "templates", "notes.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		file string
		want []string
	}{
		{"helm/testdata/values/pools.yaml", []string{"rollout status daemonset/directx-nri-windows-render\n", "rollout status daemonset/directx-nri-linux-train\n", "kubectl get nodes", "dxctl.exe' doctor", "--set restore=true"}},
		{"helm/testdata/values/restore.yaml", []string{"rollout status daemonset/directx-nri-windows-render\n", "kubectl -n directx-nri get pods", "logs POD", "helm -n directx-nri uninstall directx-nri"}},
		{"helm/testdata/values/server2019.yaml", []string{"windows.updateStrategy is OnDelete"}},
	} {
		stdout, stderr, err := helm(t, "template", "directx-nri", copied, "--namespace", "directx-nri", "--values", test.file, "--show-only", "templates/notes.yaml")
		if err != nil {
			t.Fatalf("%v: %s", err, stderr)
		}
		_, indented, _ := strings.Cut(stdout, "\nnotes: |\n")
		notes := strings.ReplaceAll("\n"+indented, "\n  ", "\n")
		t.Log(notes)
		for _, want := range test.want {
			if !strings.Contains(notes, want) {
				t.Errorf("%s: there is no %q in\n%s", test.file, want, notes)
			}
		}
		if regexp.MustCompile(`(?m)[^ \t][ \t]+$`).MatchString(notes) {
			t.Errorf("%s: spaces end a line of\n%s", test.file, notes)
		}
	}
}
