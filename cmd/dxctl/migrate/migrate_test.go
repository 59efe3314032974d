package migrate

import (
	"errors"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// daemonSet returns a DaemonSet as TensorWorks and Microsoft publish it, with more
// lines for its container.
func daemonSet(name, more string) string {
	return `---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: device-plugin-` + name + `}
spec:
  selector: {matchLabels: {app: device-plugin-` + name + `}}
  template:
    metadata: {labels: {app: device-plugin-` + name + `}}
    spec:
      nodeSelector: {kubernetes.io/os: windows, node.kubernetes.io/windows-build: 10.0.20348}
      securityContext: {windowsOptions: {hostProcess: true, runAsUserName: "NT AUTHORITY\\SYSTEM"}}
      hostNetwork: true
      containers:
      - name: device-plugin-` + name + `
        image: index.docker.io/tensorworks/` + name + `-device-plugin:0.0.1
        imagePullPolicy: Always
` + more
}

func env(name, value string) string {
	return "        env: [{name: " + name + ", value: '" + value + "'}]\n"
}

func configMapOf(data string) string {
	return "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: device-plugin-config}\ndata:\n" + data
}

const (
	head    = "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\n"
	byPath  = head + "assignmentMode: location-path\nresources:\n"
	display = "  - name: directx.microsoft.com/display\n    match:\n      kind: display\n      integrated: false\n      detachable: false\n    replicas: "
	compute = "  - name: directx.microsoft.com/compute\n    match:\n      kind: compute\n      integrated: false\n      detachable: false\n    replicas: "
	onNodes = "# nodeSelector of device-plugin-wddm is a value of the Helm chart.\n"
	fromMap = "        env: [{name: WDDM_DEVICE_PLUGIN_MULTITENANCY, valueFrom: {configMapKeyRef: {name: device-plugin-config, key: multitenancy}}}]\n"
	mounts  = `Multitenancy: 2
includeIntegrated: true
additionalMounts:
  NVIDIA: [{source: nvml.dll, destination: nvml.dll}]
  intel corporation: [{source: 'bin\a.exe', destination: b.exe}]
additionalMountsWow64:
  nvidia: [{source: vulkaninfo-x86.exe, destination: vulkaninfo.exe}]
`
	slicing = "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: nvidia.com/gpu, replicas: 10}\n"
	gpu     = head + "resources:\n  - name: nvidia.com/gpu\n    match:\n      vendor:\n        - nvidia\n    replicas: "
)

func TestConvert(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ from, data, want string }{
		"default-daemonsets.yml": {TensorWorks, daemonSet("mcdm", "") + daemonSet("wddm", ""), strings.ReplaceAll(onNodes, "wddm", "mcdm") + onNodes + byPath + compute + "1\n" + display + "1\n"},
		"multitenancy-inline.yml": {TensorWorks,
			daemonSet("mcdm", env("MCDM_DEVICE_PLUGIN_MULTITENANCY", "3")) + daemonSet("wddm", env("WDDM_DEVICE_PLUGIN_MULTITENANCY", "4")),
			strings.ReplaceAll(onNodes, "wddm", "mcdm") + onNodes + byPath + compute + "3\n" + display + "4\n"},
		"multitenancy-configmap.yml": {TensorWorks, configMapOf("  multitenancy: '4'\n") + daemonSet("wddm", fromMap), onNodes + byPath + display + "4\n"},
		"as kubectl get prints them": {TensorWorks,
			"kind: List\nitems:\n" +
				"- {kind: ConfigMap, metadata: {name: m}, data: {WDDM_DEVICE_PLUGIN_INCLUDE_DETACHABLE: 'True'}}\n" +
				"- {kind: DaemonSet, spec: {template: {spec: {containers: [{name: wddm, envFrom: [{configMapRef: {name: m}}]}]}}}}\n",
			byPath + "  - name: directx.microsoft.com/display\n    match:\n      kind: display\n      integrated: false\n    replicas: 1\n"},
		"environment, over the file": {TensorWorks,
			configMapOf("  w.yaml: 'multitenancy: 2'\n") +
				daemonSet("wddm", strings.Replace(env("WDDM_DEVICE_PLUGIN_CONFIG_FILE", `C:\config\w.yaml`), "]", ", {name: WDDM_DEVICE_PLUGIN_MULTITENANCY, value: '5'}]", 1)),
			onNodes + byPath + display + "5\n"},
		"settings without values": {TensorWorks, configMapOf("  wddm.yaml: 'multitenancy:'\n") + daemonSet("wddm", env("WDDM_DEVICE_PLUGIN_INCLUDE_INTEGRATED", "1")),
			onNodes + byPath + strings.Replace(display, "      integrated: false\n", "", 1) + "1\n"},
		"the usual file":    {TensorWorks, configMapOf("  wddm.yaml: 'multitenancy: 2'\n") + daemonSet("wddm", ""), onNodes + byPath + display + "2\n"},
		"a ConfigMap alone": {TensorWorks, configMapOf("  multitenancy: '4'\n"), byPath + compute + "4\n" + display + "4\n"},
		"variables": {TensorWorks, "WDDM_DEVICE_PLUGIN_MULTITENANCY=4\nMCDM_DEVICE_PLUGIN_MULTITENANCY=0\nWDDM_DEVICE_PLUGIN_NEW=x\nPATH=y\n",
			"# wddm.new has no counterpart.\n" + byPath + compute + "1\n" + display + "4\n"},
		"a configuration file": {TensorWorks, mounts, `# The files of the mcdm plugin (runtimeFiles) are added to all GPUs of the vendor.
# The files of the wddm plugin (runtimeFiles) are added to all GPUs of the vendor.
` + strings.ReplaceAll(byPath+compute+"2\n"+display+"2\n", "      integrated: false\n", "") + `runtimeFiles:
  intel:
    add:
      - source: bin\a.exe
        destination: b.exe
  nvidia:
    add:
      - source: nvml.dll
        destination: nvml.dll
      - source: vulkaninfo-x86.exe
        directory: SysWOW64
        destination: vulkaninfo.exe
`},
		"time slicing": {NVIDIA, slicing, gpu + "10\n"},
		"all of it": {NVIDIA, strings.NewReplacer(
			"resources:", "renameByDefault: true\n    failRequestsGreaterThanOne: true\n    resources:", "10}", "10, rename: x}",
		).Replace(slicing) + `    - {name: nvidia.com/mig-1g.5gb, replicas: 2}
flags: {migStrategy: mixed, failOnInitError: true, gdsEnabled: false, mpsRoot: "", plugin: {deviceListStrategy: [envvar], sharedDevicesAllocationPolicy: packed}}
"a\nb": {c: 1}
`, `# sharing.timeSlicing.resources[0].rename has no counterpart.
# sharing.timeSlicing.resources[1] has no counterpart: it is not nvidia.com/gpu.
# a b.c has no counterpart.
# flags.migStrategy has no counterpart.
# flags.plugin.deviceListStrategy has no counterpart.
` + strings.Replace(gpu, "resources:\n  - name: nvidia.com/gpu", "failOnInitError: true\nresources:\n  - name: nvidia.com/gpu.shared", 1) +
			"10\n    allocationPolicy: packed\n    maxPerContainer: 1\n"},
		"without sharing, in a ConfigMap": {NVIDIA, configMapOf("  config: |\n    version: v1\n    flags: {migStrategy: none}\n"), gpu + "1\n"},
		"MPS":                             {NVIDIA, strings.Replace(slicing, "timeSlicing", "mps", 1), "# sharing.mps.resources has no counterpart.\n" + gpu + "1\n"},
	} {
		got, err := Convert(test.from, []byte(test.data))
		if err != nil || string(got) != test.want {
			t.Errorf("%s: %v, got\n%swant\n%s", name, err, got, test.want)
		}
		if from := Detect([]byte(test.data)); from != test.from {
			t.Errorf("%s: is for %q", name, from)
		}
	}
}

func TestConvertRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ from, data, want string }{
		"our own":                 {TensorWorks, head + "multitenancy: 2\n", "not a configuration of TensorWorks'"},
		"nothing":                 {NVIDIA, "", "not a configuration of NVIDIA's"},
		"no YAML":                 {NVIDIA, "{", "not a configuration: yaml: line 1"},
		"no replicas":             {NVIDIA, strings.Replace(slicing, ", replicas: 10", "", 1), "sharing.timeSlicing.resources[0].replicas: 0 is out of range"},
		"out of range":            {TensorWorks, "multitenancy: 5000\n", "converted:10: resources[0].replicas: 5000 is out of range"},
		"not a number":            {TensorWorks, "multitenancy: many\n", `settings of the mcdm plugin: strconv.ParseUint: parsing "many"`},
		"another vendor":          {TensorWorks, "additionalMounts: {matrox: [{source: a.dll}]}\n", `"matrox" is not a vendor`},
		"without its ConfigMap":   {TensorWorks, daemonSet("wddm", fromMap), "kubectl get configmap device-plugin-config -o yaml"},
		"without all variables":   {TensorWorks, daemonSet("wddm", "        envFrom: [{configMapRef: {name: other}}]\n"), "in ConfigMap other"},
		"without its file":        {TensorWorks, daemonSet("wddm", env("WDDM_DEVICE_PLUGIN_CONFIG_FILE", `C:\config\w.yaml`)), "no ConfigMap has w.yaml"},
		"a file that is no YAML":  {TensorWorks, configMapOf("  wddm.yaml: '{'\n") + daemonSet("wddm", ""), "wddm.yaml: yaml: "},
		"several configurations":  {NVIDIA, configMapOf("  a: 'version: v1'\n  b: 'version: v1'\n"), "several configurations: a, b: convert one"},
		"wrong type":              {NVIDIA, "version: v1\nflags: {failOnInitError: perhaps}\n", "line 2"},
		"wrong type in ConfigMap": {NVIDIA, configMapOf("  a: '{version: v1, flags: 1}'\n"), "a: yaml: "},
	} {
		got, err := Convert(test.from, []byte(test.data))
		testutil.CheckError(t, name, err, test.want)
		if got != nil {
			t.Errorf("%s: a refused file is converted to\n%s", name, got)
		}
	}
}

func FuzzConvert(f *testing.F) {
	for _, seed := range []string{
		daemonSet("wddm", fromMap) + configMapOf("  multitenancy: '4'\n"), mounts, slicing, "A=1 WDDM_DEVICE_PLUGIN_MULTITENANCY=2", "a: &a [*a]",
		"version: v1\n? [a]: b\n", "kind: List\nitems: &a [*a]\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, from := range []string{TensorWorks, NVIDIA} {
			text, err := Convert(from, data)
			if err != nil {
				continue
			}
			if _, rest, _ := strings.Cut("\n"+string(text), "\n"+head); rest == "" || errors.Join(config.Check("", text, "linux"), config.Check("", text, "windows")) != nil {
				t.Fatalf("%s: %s", from, text)
			}
		}
	})
}
