package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

const head = "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\n"

// rules is a file with a line for each rule; the first is line 4.
func rules(lines ...string) string {
	return head + "resources:\n- " + strings.Join(lines, "\n- ") + "\n"
}

// compile compiles text without trust checks and without its inventory.
func compile(t *testing.T, nodeOS, text string) (policy.Policy, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	testutil.WriteFile(t, file, text, 0o600)
	stateDir := "/var/lib/directx-nri"
	if nodeOS == "windows" {
		stateDir = `C:\ProgramData\directx-nri`
	}
	c, err := Compiler{File: file, Required: true, StateDir: stateDir, NodeOS: nodeOS, InspectOnly: true}.Compile()
	p := c.Policy
	if p.CompiledFrom.Config != "" && (p.CompiledFrom.Config != file || p.CompiledFrom.ConfigSHA256 != hashOf([]byte(text))) {
		t.Errorf("source %+v", p.CompiledFrom)
	}
	p.CompiledFrom.Config, p.CompiledFrom.ConfigSHA256 = "", ""
	return p, err
}

// everything has a value other than the default for each key of a Windows node.
const everything = head + `inventory: C:\i.yaml
failOnInitError: true
shim: {log: C:\shim.log}
log: {level: debug, format: json}
metrics: {address: ":9400"}
replicas: 2
resources:
- name: example.com/big
  match:
    kind: display
    vendor: [nvidia, 0x1a03, 4318]
    description: [NVIDIA Tesla*, "*A10?"]
    dedicatedMemory: {min: 8Gi, max: 17179869184}
    driverVersion: {min: 31.0, max: 32}
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
    remove: [nvidia-smi.exe, "bin/*.dll"]
    add:
    - tool.exe
    - {source: x32/*.dll, directory: SysWOW64}
    - {source: a.exe, destination: b.exe}
  0x8086: {add: [i.exe]}
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
	got, err := compile(t, "windows", everything)
	testutil.NoError(t, err)
	no, yes := false, true
	want := policy.Policy{
		CompiledFrom: policy.CompiledFrom{Inventory: `C:\i.yaml`},
		Resources: []policy.ResourceRule{{
			Name: "example.com/big", Match: policy.Match{
				Kind: "display", Vendors: []pci.Vendor{0x10DE, 0x1A03, 0x10DE}, Descriptions: []string{"NVIDIA Tesla*", "*A10?"}, LocationPaths: []string{"PCIROOT(0)#*"},
				DedicatedMemory: policy.MemoryBounds{Min: 8 << 30, Max: 16 << 30},
				DriverVersion:   policy.DriverBounds{Min: policy.DriverVersion{31}, Max: policy.DriverVersion{32, 65535, 65535, 65535}},
				Integrated:      &no, Detachable: &yes,
			},
			Replicas: 1024, AllocationPolicy: policy.Packed, MaxPerContainer: 2048, MixedDrivers: policy.AllowMixed,
		}, {
			Name: "directx.microsoft.com/display", Match: policy.Match{Kind: "display"}, Replicas: 2, AllocationPolicy: policy.Distributed, MixedDrivers: policy.RefuseMixed,
		}},
		Assignment: policy.AssignByClass, DriverFiles: policy.FilesNone, Injection: policy.InjectByKubelet,
		RuntimeFiles: map[pci.Vendor]policy.RuntimeFiles{
			0x10DE: {Remove: []string{"nvidia-smi.exe", `bin\*.dll`}, Add: []policy.AddedFile{
				{Source: "tool.exe", Directory: "System32"}, {Source: `x32\*.dll`, Directory: "SysWOW64"}, {Source: "a.exe", Directory: "System32", Destination: "b.exe"},
			}},
			0x8086: {Add: []policy.AddedFile{{Source: "i.exe", Directory: "System32"}}},
		},
		ExtraMounts: policy.ExtraMounts{
			Sources: policy.MountSourcesHostDirectories, HostDirectories: []string{`D:\models`, `C:\Tools\x`}, Destinations: []string{`C:\app`, `C:\Windows\System32`}, Max: 4, Configured: true,
		},
		Standalone: policy.Standalone{Environment: true}, FailOnInitError: true, Metrics: policy.Metrics{Address: ":9400"},
		Shim: policy.Shim{Log: `C:\shim.log`}, Log: policy.Log{Level: "debug", Format: "json"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestDefaults: a file without keys, no file, and [policy.Default] are the same.
func TestDefaults(t *testing.T) {
	t.Parallel()
	want := policy.Default()
	if p, err := compile(t, runtime.GOOS, head); err != nil || !cmp.Equal(want, p) {
		t.Errorf("no keys: %v\n%s", err, cmp.Diff(want, p))
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	want.CompiledFrom.Config = file
	c, err := Compiler{File: file, StateDir: t.TempDir(), NodeOS: runtime.GOOS}.Compile()
	if err != nil || c.Devices != nil || !cmp.Equal(want, c.Policy) {
		t.Errorf("no file: %v, %v\n%s", c.Devices, err, cmp.Diff(want, c.Policy))
	}
	if c, err := (Compiler{File: "none.yaml", NodeOS: "linux"}).Compile(); err != nil || !filepath.IsAbs(c.Policy.CompiledFrom.Config) {
		t.Errorf("a relative path: %+v, %v", c.Policy.CompiledFrom, err)
	}
	if _, err := (Compiler{File: file, Required: true}).Compile(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file that is required: %v", err)
	}
}

func TestPresets(t *testing.T) {
	t.Parallel()
	no := false
	for text, want := range map[string]struct {
		rules      []policy.ResourceRule
		assignment policy.Assignment
	}{
		"preset: tensorworks\nreplicas: 4\n": {[]policy.ResourceRule{
			{Name: "directx.microsoft.com/display", Match: policy.Match{Kind: "display", Integrated: &no, Detachable: &no}, Replicas: 4,
				AllocationPolicy: policy.Distributed, MixedDrivers: policy.RefuseMixed},
			{Name: "directx.microsoft.com/compute", Match: policy.Match{Kind: "compute", Integrated: &no, Detachable: &no}, Replicas: 4,
				AllocationPolicy: policy.Distributed, MixedDrivers: policy.RefuseMixed},
		}, policy.AssignByPath},
		"preset: microsoft\n": {[]policy.ResourceRule{
			{Name: "microsoft.com/directx", Match: policy.Match{Kind: "display", Descriptions: []string{"*nvidia*"}}, Replicas: 1,
				AllocationPolicy: policy.Distributed, MixedDrivers: policy.RefuseMixed},
		}, policy.AssignByClass},
		"assignmentMode: auto\npreset: alibaba\n": {[]policy.ResourceRule{
			{Name: "windows.alibabacloud.com/directx", Match: policy.Match{Kind: "display"}, Replicas: 1, AllocationPolicy: policy.Distributed, MixedDrivers: policy.RefuseMixed},
		}, policy.AssignAuto},
	} {
		p, err := compile(t, "windows", head+text)
		if diff := cmp.Diff(want.rules, p.Resources); err != nil || diff != "" || p.Assignment != want.assignment {
			t.Errorf("%s: %v, assignment %s (-want +got):\n%s", text, err, p.Assignment, diff)
		}
	}
}

func TestCompileAccepts(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"upper case":                  rules("{name: a.b/C_d.e-F}"),
		"a wider rule behind":         rules("{name: a.b/t4, match: {description: '*T4*'}}", "{name: a.b/all}"),
		"rules that overlap":          rules("{name: a.b/c, match: {vendor: nvidia}}", "{name: a.b/d, match: {kind: display}}"),
		"rules with the same name":    rules("{name: a.b/c, match: {vendor: nvidia}, replicas: 2}", "{name: a.b/c, match: {vendor: amd}, replicas: 4, allocationPolicy: distributed}"),
		"host directories not in use": head + "extraMounts: {hostDirectories: [/opt/models]}\n",
		"no built-in runtime files":   head + "runtimeFiles: {nvidia: {defaults: false}}\n",
		"empty values":                head + "inventory: ''\npreset: ''\nmetrics: {address: ''}\n",
		"an anchor":                   head + "resources:\n- &a {name: a.b/c, match: &m {kind: display}}\n- {name: a.b/d, match: {kind: compute}}\n",
		"IPv6":                        head + "metrics: {address: '[::1]:80'}\n",
		"minima alone":                rules("{name: a.b/c, match: {dedicatedMemory: {min: 8Gi}, driverVersion: {min: 31}}}"),
		"maximum 31 of 31.x":          rules("{name: a.b/c, match: {driverVersion: {min: 31.5, max: 31}}}"),
	} {
		if _, err := compile(t, "linux", text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBooleans(t *testing.T) {
	t.Parallel()
	// Jinja writes True.
	for text, want := range map[string]string{
		"true": "true", "True": "true", "TRUE": "true", "on": "true", "yes": "true", "'yes'": "true",
		"false": "false", "False": "false", "off": "false", "no": "false",
		"'true'": "refused", "1": "refused", "''": "refused", "y": "refused",
	} {
		p, err := compile(t, "linux", head+"visibilityHints: "+text+"\n")
		got := strconv.FormatBool(p.VisibilityHints)
		if err != nil {
			got = "refused"
		}
		if got != want {
			t.Errorf("%s: %s, want %s (%v)", text, got, want, err)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	t.Parallel()
	mounts := func(key, dir string) string { return head + "extraMounts: {" + key + ": ['" + dir + "']}\n" }
	for name, test := range map[string]struct{ text, says string }{
		"empty":       {"", "config.yaml: the file is empty"},
		"a list":      {"- a\n", "got a list, want a mapping with apiVersion, kind, "},
		"no kind":     {"log: {}\n", "config.yaml: apiVersion: missing: want directx.microsoft.com/v1alpha1"},
		"other kind":  {"apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\nx: y\n", `config.yaml:2: kind: "Inventory" is not valid: want Configuration`},
		"unknown key": {head + "Replicas: 2\n", `config.yaml:3: unknown key "Replicas": want apiVersion, kind, inventory, `},
		"unknown in file": {head + "runtimeFiles: {amd: {add: [{source: a, target: System32}]}}\n",
			`config.yaml:3: runtimeFiles.amd.add[0]: unknown key "target": want source, directory, destination`},
		"wrong type":      {head + "shim: 3\n", `config.yaml:3: shim: got 3, want a mapping with log`},
		"no mapping":      {head + "runtimeFiles: nvidia\n", `config.yaml:3: runtimeFiles: got "nvidia", want a mapping`},
		"no list":         {head + "runtimeFiles: {nvidia: {remove: a.dll}}\n", `config.yaml:3: runtimeFiles.nvidia.remove: got "a.dll", want a list`},
		"no value":        {head + "replicas:\n", "config.yaml:3: replicas: no value"},
		"twice":           {head + "replicas: 2\nreplicas: 3\n", "config.yaml:4: mapping key \"replicas\" already defined at line 3"},
		"not YAML":        {head + "a: b: c\n", "config.yaml:3: mapping values are not allowed"},
		"two documents":   {head + "---\n" + head, "more than one YAML document"},
		"too long":        {head + strings.Repeat("#", maxConfig), "larger than"},
		"binary":          {head + "inventory: !!binary YQ==\n", "not a single line of text"},
		"two lines":       {head + `shim: {log: "a\nb"}` + "\n", "not a single line of text"},
		"null as key":     {head + "~: 2\n", `config.yaml:3: unknown key "~"`},
		"an alias as key": {head + "inventory: &replicas /x\n? *replicas\n: 2\n", `config.yaml:5: unknown key "/x"`},
		"itself":          {head + "log: &a {level: *a}\n", "config.yaml"},

		"relative path":   {head + "inventory: gpus.yaml\n", `inventory: "gpus.yaml" is not an absolute path`},
		"port 0":          {head + "metrics: {address: ':0'}\n", "metrics.address"},
		"assignment":      {head + "assignmentMode: guid\n", `config.yaml:3: assignmentMode: "guid" is not valid: want auto, location-path, class-guid`},
		"octal to others": {head + "replicas: 010\n", `replicas: got 010, want a whole number`},

		"no rules":         {head + "resources: []\n", "resources: the list is empty"},
		"preset and rules": {head + "preset: alibaba\nresources: [{name: a.b/c}]\n", "exclude each other"},
		"unknown preset":   {head + "preset: nvidia\n", `preset: "nvidia" is not valid: want tensorworks, microsoft, alibaba`},
		"no name":          {rules("{replicas: 2}"), "config.yaml:4: resources[0].name: missing: want a string, such as example.com/t4"},
		"rule's replicas":  {rules("{name: a.b/c}", "{name: a.b/d, replicas: 0}"), "config.yaml:5: resources[1].replicas: 0 is out of range"},
		"vendor": {rules("{name: a.b/c, match: {vendor: Nvidia}}"),
			`"Nvidia" is not a vendor: want amd, intel, microsoft, nvidia, qualcomm, or a PCI vendor ID such as 0x10DE`},
		"vendor without its 0x": {rules("{name: a.b/c, match: {vendor: 8086}}"), `"8086" is not a vendor`},
		"vendor too large":      {rules("{name: a.b/c, match: {vendor: 65536}}"), "is not a vendor"},
		"no vendor":             {rules("{name: a.b/c, match: {vendor: []}}"), "config.yaml:4: resources[0].match.vendor: the list is empty"},
		"empty pattern":         {rules("{name: a.b/c, match: {description: ''}}"), "resources[0].match.description: no value"},
		"space at an end":       {rules("{name: a.b/c, match: {description: 'T4 '}}"), `"T4 " begins or ends with a space`},
		"long pattern":          {rules("{name: a.b/c, match: {description: '" + strings.Repeat("a", 257) + "'}}"), "257 characters: use 256 or fewer"},
		"memory":                {rules("{name: a.b/c, match: {dedicatedMemory: {min: 8 XB}}}"), "is not an amount of memory"},
		"no memory":             {rules("{name: a.b/c, match: {dedicatedMemory: {max: 0}}}"), `"0" is not a bound`},
		"memory upside down":    {rules("{name: a.b/c, match: {dedicatedMemory: {min: 8Gi, max: 4Gi}}}"), "max is less than min"},
		"version":               {rules("{name: a.b/c, match: {driverVersion: {min: latest}}}"), "is not a driver version"},
		"no version":            {rules("{name: a.b/c, match: {driverVersion: {min: 0.0}}}"), `resources[0].match.driverVersion.min: "0.0" is not a bound`},
		"versions upside down":  {rules("{name: a.b/c, match: {driverVersion: {min: 31.0.1, max: 31.0.0}}}"), "max is less than min"},

		"name without domain":  {rules("{name: gpu}"), "is not an extended resource"},
		"Kubernetes' domain":   {rules("{name: kubernetes.io/gpu}"), "domain of Kubernetes"},
		"quota":                {rules("{name: requests.example.com/gpu}"), "quotas"},
		"domain in upper case": {rules("{name: Example.com/gpu}"), "is not an extended resource"},
		"long domain":          {rules("{name: " + strings.Repeat("a.", 122) + "b/gpu}"), "is not an extended resource"},
		"long name":            {rules("{name: a.b/" + strings.Repeat("a", 64) + "}"), "63"},
		"bad end":              {rules("{name: a.b/gpu-}"), "is not an extended resource"},
		"similar names": {rules("{name: a.b/c-d, match: {kind: display}}", "{name: a.b/c.d, match: {kind: compute}}"),
			"config.yaml:5: resources[1]: the names a.b/c-d and a.b/c.d are too similar"},
		"policies differ": {rules("{name: a.b/c, match: {kind: display}}", "{name: a.b/c, match: {kind: compute}, allocationPolicy: packed}"),
			"config.yaml:5: resources[1]: a.b/c is also the resource of resources[0]"},
		"limits differ":        {rules("{name: a.b/c, match: {kind: display}}", "{name: a.b/c, match: {kind: compute}, maxPerContainer: 2}"), "must be the same in both"},
		"drivers differ":       {rules("{name: a.b/c, match: {kind: display}}", "{name: a.b/c, match: {kind: compute}, mixedDrivers: allow}"), "must be the same in both"},
		"a preset as a number": {head + "preset: 3\n", "preset: got 3, want tensorworks, microsoft, alibaba"},
		"never matches": {rules("{name: a.b/c, match: {kind: display}}", "{name: a.b/d, match: {kind: display, vendor: amd}}"),
			"config.yaml:5: resources[1]: matches no GPU that resources[0] does not match first"},

		"file's vendor":      {head + "runtimeFiles: {ati: {}}\n", "runtimeFiles.ati"},
		"vendor twice":       {head + "runtimeFiles: {nvidia: {}, 0x10DE: {}}\n", "runtimeFiles.nvidia: the same as 0x10DE: remove one of them"},
		"file above":         {head + "runtimeFiles: {amd: {remove: ['..\\a']}}\n", "runtimeFiles.amd.remove[0]"},
		"file with an end":   {head + "runtimeFiles: {amd: {add: ['a.exe.']}}\n", "runtimeFiles.amd.add[0]"},
		"directory":          {head + "runtimeFiles: {amd: {add: [{source: a, directory: drivers}]}}\n", "directory: "},
		"destination a dot":  {head + "runtimeFiles: {amd: {add: [{source: a, destination: .}]}}\n", "is not a file name"},
		"destination a path": {head + "runtimeFiles: {amd: {add: [{source: a, destination: 'b\\c'}]}}\n", "is not a file name"},
		"one for several": {head + "runtimeFiles:\n  0x1002:\n    add:\n    - {source: '*.dll', destination: b}\n",
			"config.yaml:6: runtimeFiles.amd.add[0]: a source with wildcards can be several files"},

		"no host directory":     {head + "extraMounts: {sources: host-directories}\n", "config.yaml:3: extraMounts.sources: host-directories needs extraMounts.hostDirectories"},
		"max":                   {head + "extraMounts: {max: 1025}\n", "extraMounts.max"},
		"the root":              {mounts("hostDirectories", "/"), "secrets"},
		"secrets":               {mounts("hostDirectories", "/etc/ssl"), "secrets"},
		"a parent of secrets":   {mounts("hostDirectories", "/var"), "secrets"},
		"MicroK8s's kubelet":    {mounts("hostDirectories", "/var/snap/microk8s/common/var/lib/kubelet"), "secrets"},
		"minikube's keys":       {mounts("hostDirectories", "/var/lib/minikube/certs"), "secrets"},
		"the state directory":   {mounts("hostDirectories", "/var/lib/directx-nri/allocations"), "/var/lib/directx-nri"},
		"a directory not clean": {mounts("hostDirectories", "/opt/../etc"), "clean absolute path"},
	} {
		_, err := compile(t, "linux", test.text)
		testutil.CheckError(t, name, err, test.says)
		if problems := (KeyErrors)(nil); !errors.As(err, &problems) {
			t.Errorf("%s: %T is not KeyErrors", name, err)
		}
	}
}

func TestWindowsHostDirectories(t *testing.T) {
	t.Parallel()
	for dir, valid := range map[string]bool{
		`D:\models`: true, `C:\Tools\a b`: true, `C:\Windowsx`: true,
		`C:\`: false, `\models`: false, `models`: false, `\\server\share\x`: false, `\\?\C:\models`: true, `C:\PROGRA~1`: false, `C:\a\..\Users`: false, `C:\a.`: false,
		`c:\USERS\x`: false, `D:\ProgramData`: false, `C:\Windows\System32\config\systemprofile`: false, `C:\ProgramData\directx-nri`: false, `C:\k`: false,
	} {
		_, err := compile(t, "windows", head+"extraMounts: {sources: host-directories, hostDirectories: ['"+dir+"']}\n")
		if (err == nil) != valid {
			t.Errorf("%s: error %v", dir, err)
		}
	}
}

// TestAllErrorsAreReported: those of types, values and rules at once, in the order of lines.
func TestAllErrorsAreReported(t *testing.T) {
	t.Parallel()
	_, err := compile(t, "linux", head+
		"inventory: x\nruntimeFiles: {amd: {x: 1}}\nreplicas: 0\nlog: {level: loud}\n"+
		"resources: [{name: a, match: {dedicatedMemory: {min: 2, max: 1}}}]\nextraMounts: {hostDirectories: [[]]}\n")
	errs := KeyErrors{}
	errors.As(err, &errs)
	var got []string
	for _, e := range errs {
		got = append(got, fmt.Sprintf("%d %s", e.Line, e.Path))
	}
	want := []string{
		"3 inventory", "4 runtimeFiles.amd", "5 replicas", "6 log.level",
		"7 resources[0].name", "7 resources[0].match.dedicatedMemory", "8 extraMounts.hostDirectories[0]",
	}
	if !cmp.Equal(got, want) {
		t.Errorf("%v", err)
	}
	if many := (make(KeyErrors, 60)).Error(); strings.Count(many, "\n") != 50 || !strings.HasSuffix(many, "and 10 more") {
		t.Error(many)
	}
}

func TestFlagsOverrideFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.yaml")
	testutil.WriteFile(t, file, head+"replicas: 7\nlog: {level: warn}\ninjection: shim\n", 0o600)
	nodeOS := "linux"
	compileWith := func(args ...string) (policy.Policy, error) {
		c := Compiler{File: file, StateDir: "/x", NodeOS: nodeOS, InspectOnly: true}
		command := &cobra.Command{}
		c.Flags.Add(command)
		if err := command.ParseFlags(args); err != nil {
			return policy.Policy{}, err
		}
		compiled, err := c.Compile()
		return compiled.Policy, err
	}
	p, err := compileWith()
	testutil.NoError(t, err)
	if p.Resources[0].Replicas != 7 || p.Log.Level != "warn" || p.Injection != policy.InjectByShim {
		t.Errorf("no flags: %+v", p)
	}
	p, err = compileWith("--preset=tensorworks", "--replicas=3", "--injection=kubelet", "--log-level=debug",
		"--log-format=json", "--metrics-address=:80", "--fail-on-init-error")
	testutil.NoError(t, err)
	if r := p.Resources[0]; r.Match.Integrated == nil || r.Replicas != 3 {
		t.Errorf("--preset and --replicas: %+v", r)
	}
	got := policy.Policy{Injection: p.Injection, Log: p.Log, Metrics: p.Metrics, FailOnInitError: p.FailOnInitError}
	want := policy.Policy{
		Injection: policy.InjectByKubelet, Log: policy.Log{Level: "debug", Format: "json"}, Metrics: policy.Metrics{Address: ":80"}, FailOnInitError: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("all flags (-want +got):\n%s", diff)
	}
	// A value that has an anchor is overridden in one place, and what is invalid has no effect.
	testutil.WriteFile(t, file, head+"log: {level: &a /loud}\nshim: {log: *a}\n", 0o600)
	if p, err = compileWith("--log-level=info"); err != nil || p.Log.Level != "info" || p.Shim.Log != "/loud" {
		t.Errorf("an anchor: %+v, %+v, %v", p.Log, p.Shim, err)
	}
	if p, err = compileWith("--log-level=info", "--fail-on-init-error=1"); err != nil || !p.FailOnInitError {
		t.Errorf("a boolean: %t, %v", p.FailOnInitError, err)
	}
	for _, arg := range []string{"--preset=x", "--replicas=0", "--replicas=x", "--injection=x", "--log-level=x", "--log-format=", "--metrics-address=x", "--fail-on-init-error=x"} {
		flag, value, _ := strings.Cut(arg, "=")
		if _, err := compileWith(arg); err == nil || !strings.HasPrefix(err.Error(), `invalid argument "`+value+`" for "`+flag+`" flag: `) {
			t.Errorf("%s: error %v", arg, err)
		}
	}
	// A path is relative to the working directory, of this system.
	nodeOS = runtime.GOOS
	testutil.WriteFile(t, file, head, 0o600)
	inventory, absErr := filepath.Abs("i.yaml")
	if p, err = compileWith("--inventory", "i.yaml"); err != nil || absErr != nil || p.CompiledFrom.Inventory != inventory {
		t.Errorf("--inventory: %+v, %v", p.CompiledFrom, err)
	}
}

func TestApplyInventory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	stateDir, file, inventory := filepath.Join(dir, "state"), filepath.Join(dir, "config.yaml"), filepath.Join(dir, "gpus.yaml")
	c := Compiler{File: file, StateDir: stateDir, NodeOS: "linux"}
	apply := func() {
		t.Helper()
		if _, err := c.Apply(); err != nil {
			t.Fatal(err)
		}
	}
	testutil.WriteFile(t, file, head+"inventory: '"+inventory+"'\n", 0o600)
	if _, err := c.Compile(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no inventory: %v", err)
	}
	testutil.WriteFile(t, inventory, inventoryHead+"- instanceID: a\n  numaNode: -1\n", 0o600)
	_, err := c.Compile()
	testutil.CheckError(t, "invalid inventory", err, inventory+":5: devices[0].numaNode: ")
	text := inventoryHead + "- instanceID: a\n"
	testutil.WriteFile(t, inventory, text, 0o600)
	apply()
	p, err := policy.Read(stateDir)
	want := policy.CompiledFrom{Config: file, ConfigSHA256: p.CompiledFrom.ConfigSHA256, Inventory: inventory, InventorySHA256: hashOf([]byte(text))}
	if err != nil || !p.UseInventory || !cmp.Equal(p.CompiledFrom, want) {
		t.Errorf("%+v, %v", p, err)
	}
	if devices, err := node.CompiledInventory(stateDir).Devices(t.Context()); err != nil || !cmp.Equal(devices, []discovery.Device{{InstanceID: "a"}}) {
		t.Errorf("devices %v, %v", devices, err)
	}
	// A damaged policy is replaced.
	testutil.WriteFile(t, policy.Path(stateDir), "{", 0o600)
	testutil.WriteFile(t, file, head, 0o600)
	apply()
	if p, err := policy.Read(stateDir); err != nil || p.UseInventory {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := os.Stat(node.CompiledInventory(stateDir).Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the compiled inventory is still there: %v", err)
	}
}

func FuzzCompile(f *testing.F) {
	for _, seed := range []string{
		"", head, head + "shim: {log: /y}\n", "a: &a [*a]", head + "---\n", head + "log: !!binary x\n", "? [a]: b\n", everything,
		head + "preset: tensorworks\nreplicas: 3\n", head + "extraMounts: {hostDirectories: [/opt]}\n",
		rules("{name: a.b/c, match: {vendor: 0x1}}", "{name: a.b/c, match: {driverVersion: {max: 1}}}"),
		head + "runtimeFiles: {nvidia: {defaults: false}}\n", head + "resources: &a\n- {name: a.b/c, <<: {replicas: 2}}\n",
	} {
		f.Add([]byte(seed))
	}
	schema := readSchema(f, "config.schema.json")
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := parse("config.yaml", data, maxConfig)
		if err != nil {
			return
		}
		file := defaultConfiguration()
		d.decode(&file)
		if len(d.errors) == 0 && !oldBooleans.Match(data) {
			if err := schema.Validate(content(d.root)); err != nil {
				t.Fatalf("the schema refuses it: %v", err)
			}
		}
		p := Compiler{NodeOS: "windows", StateDir: `C:\state`}.build(d, file)
		if err := d.err(); err != nil {
			if err.Error() == "" {
				t.Fatal("no text")
			}
			return
		}
		for _, r := range p.Resources {
			if err := checkResource(r.Name); err != nil || r.Replicas < 1 || r.Replicas > policy.MaxReplicas || r.MaxPerContainer < 0 {
				t.Fatalf("accepted %+v", r)
			}
		}
		if len(p.Resources) == 0 || p.ExtraMounts.Max < 1 {
			t.Fatalf("accepted %+v", p)
		}
		stateDir := t.TempDir()
		testutil.NoError(t, Install(stateDir, Compiled{Policy: p}))
		if got, err := policy.Read(stateDir); err != nil || !reflect.DeepEqual(got, p) {
			t.Fatalf("%v, (-want +got):\n%s", err, cmp.Diff(p, got))
		}
	})
}

// TestRender: what is shown is accepted again, and means the same.
func TestRender(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"defaults": head, "everything": everything, "no built-in files": head + "runtimeFiles: {nvidia: {defaults: false, remove: [a.dll]}}\n",
	} {
		want, err := compile(t, "windows", text)
		testutil.NoError(t, err)
		rendered, err := Render(want)
		testutil.NoError(t, err)
		got, err := compile(t, "windows", string(rendered))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s\n%s", name, err, diff, rendered)
		}
		if marked := strings.Contains(string(rendered), "\nassignmentMode: auto # default\n"); marked != (want.Assignment == policy.AssignAuto) {
			t.Errorf("%s: the assignment mode is marked as default: %t\n%s", name, marked, rendered)
		}
	}
}
