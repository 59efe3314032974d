package config

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

const head = "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\n"

func rules(lines ...string) string {
	return head + "resources:\n- " + strings.Join(lines, "\n- ") + "\n"
}

func compile(nodeOS, text string) (policy.Policy, error) {
	stateDir := "/var/lib/directx-nri"
	if nodeOS == "windows" {
		stateDir = `C:\ProgramData\directx-nri`
	}
	return Compiler{StateDir: stateDir, NodeOS: nodeOS}.compile([]byte(text))
}

// everything has a value other than the default for each key of a Windows node.
const everything = head + `inventory: C:\i.yaml
failOnInitError: true
log: {level: debug, format: json}
metrics: {address: ":9400"}
replicas: 2
resources:
- name: example.com/big
  match:
    kind: display
    vendor: [nvidia, 0x1a03, "0x1AE0"]
    description: [NVIDIA Tesla*, "*A10?"]
    dedicatedMemory: {min: 8Gi, max: 17179869184}
    driverVersion: {min: "31.10", max: "32"}
    integrated: false
    detachable: true
    locationPath: PCIROOT(0)#*
  replicas: 1024
  allocationPolicy: packed
  maxPerContainer: 2048
  mixedDrivers: allow
- {name: directx.microsoft.com/display, match: {kind: display}}
assignmentMode: class-guid
driverFiles: none
injection: kubelet
runtimeFiles:
  nvidia:
    defaults: false
    remove: [nvidia-smi.exe, "bin/*.dll"]
    add:
    - tool.exe
    - {source: x32/*.dll, directory: SysWOW64}
    - {source: a.exe, destination: b.exe}
  '0x1AE0': {add: [i.exe]}
extraMounts:
  sources: host-directories
  hostDirectories: ['D:\models', 'c:/Tools/x']
  destinations: ['C:\app', 'C:\Windows\System32']
  max: 4
visibilityHints: off
standalone: {environment: true}
`

func TestCompileEverything(t *testing.T) {
	t.Parallel()
	got, err := compile("windows", everything)
	testutil.NoError(t, err)
	no, yes := false, true
	want := policy.Policy{
		CompiledFrom: policy.CompiledFrom{Inventory: `C:\i.yaml`},
		Resources: []policy.ResourceRule{{
			Name: "example.com/big", Match: policy.Match{
				Kind: "display", Vendors: []pci.Vendor{0x10DE, 0x1A03, 0x1AE0}, Descriptions: []string{"NVIDIA Tesla*", "*A10?"}, LocationPaths: []string{"PCIROOT(0)#*"},
				DedicatedMemory: policy.MemoryBounds{Min: 8 << 30, Max: 16 << 30},
				DriverVersion:   policy.DriverBounds{Min: policy.DriverVersion{31, 10}, Max: policy.DriverVersion{32}},
				Integrated:      &no, Detachable: &yes,
			},
			Replicas: 1024, AllocationPolicy: policy.Packed, MaxPerContainer: 2048, MixedDrivers: policy.AllowMixed,
		}, {
			Name: "directx.microsoft.com/display", Match: policy.Match{Kind: "display"}, Replicas: 2, AllocationPolicy: policy.Distributed, MixedDrivers: policy.RefuseMixed,
		}},
		Assignment: policy.AssignByClass, DriverFiles: policy.FilesNone, Injection: policy.InjectByKubelet,
		RuntimeFiles: map[pci.Vendor]policy.RuntimeFiles{
			0x10DE: {Defaults: &no, Remove: []string{"nvidia-smi.exe", "bin/*.dll"}, Add: []policy.AddedFile{
				{Source: "tool.exe"}, {Source: "x32/*.dll", Directory: "SysWOW64"}, {Source: "a.exe", Destination: "b.exe"},
			}},
			0x1AE0: {Add: []policy.AddedFile{{Source: "i.exe"}}},
		},
		ExtraMounts: policy.ExtraMounts{
			Sources: policy.MountSourcesHostDirectories, HostDirectories: []string{`D:\models`, `C:\Tools\x`}, Destinations: []string{`C:\app`, `C:\Windows\System32`}, Max: 4,
		},
		Standalone: policy.Standalone{Environment: true}, FailOnInitError: true, Metrics: policy.Metrics{Address: ":9400"},
		Log: policy.Log{Level: "debug", Format: "json"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestDefaults: no keys, no file, the defaults in the schema, and [policy.Default] are the same.
func TestDefaults(t *testing.T) {
	t.Parallel()
	want := policy.Default()
	if p, err := compile(runtime.GOOS, head); err != nil || !cmp.Equal(want, p) {
		t.Errorf("no keys: %v\n%s", err, cmp.Diff(want, p))
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	c, err := Compiler{File: file, StateDir: t.TempDir(), NodeOS: runtime.GOOS}.Compile()
	noFile := want
	noFile.CompiledFrom.Config = file
	if err != nil || c.Devices != nil || !cmp.Equal(noFile, c.Policy) {
		t.Errorf("no file: %v, %v\n%s", c.Devices, err, cmp.Diff(noFile, c.Policy))
	}
	if _, err := (Compiler{File: file, Required: true}).Compile(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file that is required: %v", err)
	}
	text, err := files.ReadFile(configSchema)
	var schema any
	testutil.NoError(t, err, json.Unmarshal(text, &schema))
	defaults, _ := defaultsOf(schema).(map[string]any)
	defaults["apiVersion"], defaults["kind"] = APIVersion, Kind
	text, err = json.Marshal(defaults)
	testutil.NoError(t, err)
	if p, err := compile(runtime.GOOS, string(text)); err != nil || len(defaults) < 9 || !cmp.Equal(want, p) {
		t.Errorf("%s: %v\n%s", text, err, cmp.Diff(want, p))
	}
}

// defaultsOf returns the default in a schema, or the defaults of its keys, nil without any.
func defaultsOf(schema any) any {
	node, _ := schema.(map[string]any)
	properties, _ := node["properties"].(map[string]any)
	values := map[string]any{}
	for key, property := range properties {
		if value := defaultsOf(property); value != nil {
			values[key] = value
		}
	}
	if len(values) > 0 {
		return values
	}
	return node["default"]
}

// TestPresets: a preset is the same as the keys that it sets.
func TestPresets(t *testing.T) {
	t.Parallel()
	for preset, keys := range map[string]string{
		"preset: tensorworks\nreplicas: 4\n": "replicas: 4\nassignmentMode: location-path\nresources:\n" +
			"- {name: directx.microsoft.com/display, match: {kind: display, integrated: false, detachable: false}}\n" +
			"- {name: directx.microsoft.com/compute, match: {kind: compute, integrated: false, detachable: false, machineLearningOnly: false}}\n",
		"preset: microsoft\n":                     "assignmentMode: class-guid\nresources: [{name: microsoft.com/directx, match: {kind: display, description: '*nvidia*'}}]\n",
		"assignmentMode: auto\npreset: alibaba\n": "resources: [{name: windows.alibabacloud.com/directx, match: {kind: display}}]\n",
	} {
		want, err := compile("windows", head+keys)
		testutil.NoError(t, err)
		got, err := compile("windows", head+preset)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", preset, err, diff)
		}
	}
}

func TestCompileAccepts(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"rules with the same name":    rules("{name: a.b/c, match: {vendor: nvidia}, replicas: 2}", "{name: a.b/c, match: {vendor: amd}, replicas: 4, allocationPolicy: distributed}"),
		"host directories not in use": head + "extraMounts: {sources: none, hostDirectories: [/opt/models]}\n",
		"empty values":                head + "inventory: ''\npreset: ''\nmetrics: {address: ''}\n",
		"maximum 31 of 31.x":          rules("{name: a.b/c, match: {driverVersion: {min: '31.5', max: '31'}}}"),
		"YAML 1.1":                    head + "visibilityHints: off\nfailOnInitError: yes\n",
		"marks of the document":       "# a\n---\n" + head + "---\n# b\n",
		"carriage return and BOM":     "\uFEFF" + strings.ReplaceAll(head, "\n", "\r\n"),
	} {
		if _, err := compile("linux", text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	t.Parallel()
	mounts := func(key, dir string) string { return head + "extraMounts: {" + key + ": ['" + dir + "']}\n" }
	for name, test := range map[string]struct{ text, says string }{
		"empty":         {"# comment\n", "it is empty"},
		"two documents": {head + "---\n" + head, "2 YAML documents, want one"},
		"unknown key":   {head + "Replicas: 2\n", "additional properties 'Replicas' not allowed"},
		"twice":         {head + "replicas: 2\nreplicas: 3\n", `line 4: key "replicas" already set in map`},
		"not YAML":      {head + "a: b: c\n", "mapping values are not allowed"},
		"itself":        {head + "log: &a {level: *a}\n", "contains itself"},

		"relative path":    {head + "inventory: gpus.yaml\n", "inventory: not valid: want an absolute path"},
		"preset and rules": {head + "preset: alibaba\nresources: [{name: a.b/c}]\n", "not valid: want either preset or resources"},

		"vendor":                {rules("{name: a.b/c, match: {vendor: Nvidia}}"), "resources[0].match.vendor: not valid: want amd, intel, "},
		"vendor without its 0x": {rules("{name: a.b/c, match: {vendor: [nvidia, 8086]}}"), "resources[0].match.vendor[1]: not valid: want amd"},
		"space at an end":       {rules("{name: a.b/c, match: {description: 'T4 '}}"), "resources[0].match.description: not valid: want one line"},
		"memory":                {rules("{name: a.b/c, match: {dedicatedMemory: {min: 8 XB}}}"), "resources[0].match.dedicatedMemory.min: not valid: want bytes"},
		"a version as a number": {rules("{name: a.b/c, match: {driverVersion: {min: 31.10}}}"), "resources[0].match.driverVersion.min: got number, want string"},
		"NVIDIA's version":      {rules("{name: a.b/c, match: {driverVersion: {min: '552.22'}}}"), "resources[0].match.driverVersion.min: not valid: want a Windows version of 1 to 4 numbers, such as 31.0.15.5222, whose"},
		"NVIDIA's series":       {rules("{name: a.b/c, match: {driverVersion: {max: '552'}}}"), "resources[0].match.driverVersion.max: not valid: want a Windows version"},
		"version too large":     {rules("{name: a.b/c, match: {driverVersion: {min: 31.0.0.65536}}}"), "not valid: want 1 to 4 numbers up to 65535"},
		"versions upside down":  {rules("{name: a.b/c, match: {driverVersion: {min: 31.0.1, max: 31.0.0}}}"), "resources[0].match.driverVersion: max is less than min"},

		"name without domain": {rules("{name: gpu}"), "resources[0].name: not valid: want a domain"},
		"Kubernetes' domain":  {rules("{name: kubernetes.io/gpu}"), "resources[0].name: not valid: want a domain of your own"},
		"long domain":         {rules("{name: " + strings.Repeat("a.", 122) + "b/gpu}"), "up to 244 characters for the domain"},
		"long name":           {rules("{name: a.b/" + strings.Repeat("a", 64) + "}"), "up to 63 for the name"},
		"similar names": {rules("{name: a.b/c-d, match: {kind: display}}", "{name: a.b/c.d, match: {kind: compute}}"),
			"resources[1]: the names a.b/c-d and a.b/c.d are too similar"},
		"never matches": {rules("{name: a.b/c, match: {kind: display}}", "{name: a.b/d, match: {kind: display, vendor: amd}}"),
			"resources[1]: matches no GPU that resources[0] does not match first"},

		"file's vendor":     {head + "runtimeFiles: {ati: {}}\n", "runtimeFiles: additional properties 'ati' not allowed"},
		"vendor's number":   {head + "runtimeFiles: {nvidia: {}, '0x10DE': {}}\n", "runtimeFiles.0x10DE: false schema"},
		"file above":        {head + "runtimeFiles: {amd: {remove: ['a\\..\\..\\b']}}\n", "runtimeFiles.amd.remove[0]: not valid: want a relative"},
		"file with an end":  {head + "runtimeFiles: {amd: {add: ['a.exe.']}}\n", "runtimeFiles.amd.add[0]"},
		"destination":       {head + "runtimeFiles: {amd: {add: [{source: a, destination: 'b\\c'}]}}\n", "runtimeFiles.amd.add[0].destination: not valid: want the name of a file"},
		"one for several":   {head + "runtimeFiles: {amd: {add: [{source: '*.dll', destination: b}]}}\n", "runtimeFiles.amd.add[0].source: not valid: want a path without wildcards"},
		"no host directory": {head + "extraMounts: {sources: host-directories}\n", "extraMounts.sources: host-directories needs extraMounts.hostDirectories"},

		"the root":              {mounts("hostDirectories", "/"), "extraMounts.hostDirectories[0]: "},
		"secrets":               {mounts("hostDirectories", "/etc/ssl"), "secrets"},
		"the state directory":   {mounts("hostDirectories", "/var/lib/directx-nri/allocations"), "/var/lib/directx-nri"},
		"a directory not clean": {mounts("hostDirectories", "/opt/../etc"), "extraMounts.hostDirectories[0]: not valid: want an absolute path"},
		"a relative directory":  {mounts("destinations", "app"), "extraMounts.destinations[0]: "},
	} {
		_, err := compile("linux", test.text)
		testutil.CheckError(t, name, err, test.says)
	}
	_, err := compile("windows", head+"injection: nri\n")
	testutil.CheckError(t, "NRI on Windows", err, "injection: containerd calls no NRI plugin on Windows")
}

func TestWindowsHostDirectories(t *testing.T) {
	t.Parallel()
	for dir, valid := range map[string]bool{
		`D:\models`: true, `C:\Tools\a b`: true, `C:\Windowsx`: true,
		`C:\`: false, `\models`: false, `models`: false, `\\server\share\x`: false, `\\?\C:\models`: false, `C:\PROGRA~1`: false, `C:\a\..\Users`: false, `C:\a.`: false,
		`c:\USERS\x`: false, `D:\ProgramData`: false, `C:\Windows\System32\config\systemprofile`: false, `C:\ProgramData\directx-nri`: false, `C:\k`: false,
	} {
		_, err := compile("windows", head+"extraMounts: {sources: host-directories, hostDirectories: ['"+dir+"']}\n")
		if (err == nil) != valid {
			t.Errorf("%s: error %v", dir, err)
		}
	}
}

// TestAllErrorsAreReported: those that the schema finds are one error, and so are all others.
func TestAllErrorsAreReported(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"runtimeFiles: {amd: {x: 1}}\nreplicas: 0\nlog: {level: loud}\nresources: [{name: a}, {}]\n": {"log.level", "replicas", "resources[0].name", "resources[1]", "runtimeFiles.amd"},
		"extraMounts: {sources: host-directories, destinations: [/x]}\ninjection: nri\n":             {"extraMounts.destinations[0]", "extraMounts.sources", "injection"},
	} {
		_, err := compile("windows", head+text)
		var got []string
		for line := range strings.Lines(err.Error()) {
			path, _, _ := strings.Cut(line, ": ")
			got = append(got, path)
		}
		if !cmp.Equal(got, want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestFlagsOverrideFile(t *testing.T) {
	t.Parallel()
	flags := func(args ...string) (map[string]any, error) {
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		set.String("other", "", "")
		AddFlags(set)
		testutil.NoError(t, set.Parse(args))
		return ReadFlags(set)
	}
	values, err := flags("--other=x", "--preset=tensorworks", "--replicas=3", "--injection=kubelet", "--log-level=debug",
		"--log-format=json", "--metrics-address=:80", "--fail-on-init-error", "--inventory=i.yaml")
	testutil.NoError(t, err)
	p, err := Compiler{NodeOS: "linux", Flags: values}.compile([]byte(head + "replicas: 7\nlog: {level: warn}\ninjection: shim\n"))
	testutil.NoError(t, err)
	inventory, err := filepath.Abs("i.yaml")
	testutil.NoError(t, err)
	want, err := compile("linux", head+"preset: tensorworks\nreplicas: 3\ninjection: kubelet\nlog: {level: debug, format: json}\n"+
		"metrics: {address: ':80'}\nfailOnInitError: true\ninventory: "+inventory+"\n")
	if diff := cmp.Diff(want, p); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if values, err := flags("--other=x"); values != nil || err != nil {
		t.Errorf("no flags: %v, %v", values, err)
	}
	for arg, says := range map[string]string{"--preset=x": "preset: ", "--replicas=0": "replicas: ", "--log-format=": "log.format: ", "--metrics-address=x": "metrics.address: "} {
		_, err := flags(arg)
		testutil.CheckError(t, arg, err, says)
	}
}

func TestApplyInventory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := Compiler{File: filepath.Join(dir, "config.yaml"), StateDir: filepath.Join(dir, "state"), NodeOS: "linux", Flags: map[string]any{"replicas": 2.0}}
	inventory, compiledInventory := filepath.Join(dir, "gpus.yaml"), node.CompiledInventory(c.StateDir)
	testutil.WriteFile(t, c.File, head+"inventory: '"+inventory+"'\n", 0o600)
	if _, err := c.Apply(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no inventory: %v", err)
	}
	testutil.WriteFile(t, inventory, device("numaNode: -1"), 0o600)
	_, err := c.Apply()
	testutil.CheckError(t, "invalid inventory", err, inventory+": devices[0].numaNode: ")
	testutil.WriteFile(t, inventory, inventoryHead+"- instanceID: a\n", 0o600)
	compiled, err := c.Apply()
	testutil.NoError(t, err)
	if p, err := policy.Read(c.StateDir); err != nil || !p.UseInventory || p.Resources[0].Replicas != 2 || !cmp.Equal(p, compiled.Policy) {
		t.Errorf("%+v, %v", p, err)
	}
	if devices, err := compiledInventory.Devices(t.Context()); err != nil || !cmp.Equal(devices, []discovery.Device{{InstanceID: "a"}}) {
		t.Errorf("devices %v, %v", devices, err)
	}
	testutil.NoError(t, c.CheckSources(compiled.Policy))
	// A change is found, and a damaged policy is replaced.
	testutil.WriteFile(t, policy.Path(c.StateDir), "{", 0o600)
	testutil.WriteFile(t, c.File, head, 0o600)
	testutil.CheckError(t, "changed sources", c.CheckSources(compiled.Policy), "has changed since")
	_, err = c.Apply()
	testutil.NoError(t, err)
	if p, err := policy.Read(c.StateDir); err != nil || p.UseInventory {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := os.Stat(compiledInventory.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the compiled inventory is still there: %v", err)
	}
}

func FuzzCompile(f *testing.F) {
	for _, seed := range []string{
		"", head, "a: &a [*a]", head + "---\n", head + "log: !!binary x\n", "? [a]: b\n", everything,
		head + "preset: tensorworks\nreplicas: 3\n", head + "extraMounts: {hostDirectories: [/opt]}\n",
		rules("{name: a.b/c, match: {vendor: 0x1}}", "{name: a.b/c, match: {driverVersion: {max: '1'}}}"),
		head + "resources: &a\n- {name: a.b/c, <<: {replicas: 2}}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := compile("windows", string(data))
		if err != nil {
			return
		}
		stateDir := t.TempDir()
		testutil.NoError(t, policy.Write(stateDir, p))
		if got, err := policy.Read(stateDir); err != nil || !reflect.DeepEqual(got, p) {
			t.Fatalf("%v, (-want +got):\n%s", err, cmp.Diff(p, got))
		}
	})
}
