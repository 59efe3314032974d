package config

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"directx-nri/internal/durable"
	"directx-nri/internal/strictyaml"
)

const head = "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\n"

// rules is a file with one line for each rule, of which the first is line 4.
func rules(lines ...string) string {
	return head + "resources:\n- " + strings.Join(lines, "\n- ") + "\n"
}

func abs(path string) string {
	if runtime.GOOS == "windows" {
		return "C:" + path
	}
	return path
}

// everything has each key, with another value than the default's.
func everything() string {
	return head + `stateDir: ` + abs("/s") + `
runtimeDir: ` + abs("/r") + `
inventory: ` + abs("/i.yaml") + `
hostRoot: ` + abs("/host") + `
containerOS: windows
servedBy: shim
failOnInitError: true
kubelet: {devicePluginDir: ` + abs("/k/dp") + `, podResourcesSocket: ` + abs("/k/pr.sock") + `}
containerd: {nriSocket: ` + abs("/nri.sock") + `, nriIndex: 07, criSocket: ` + abs("/cri.sock") + `}
shim: {runtime: other-shim, log: ` + abs("/shim.log") + `}
log: {level: debug, format: json}
metrics: {address: ":9400", pluginAddress: "[::1]:9401"}
replicas: 2
resources:
- name: example.com/big
  match:
    kind: display
    vendor: [nvidia, 0x1a03, 4318]
    description: [NVIDIA Tesla*, "*A10?"]
    dedicatedMemory: {min: 8GiB, max: 17179869184}
    driverVersion: {min: 31.0, max: 32}
    integrated: false
    detachable: true
    locationPath: PCIROOT(0)#*
  replicas: 1024
  allocationPolicy: packed
  maxPerContainer: 2048
  exclusiveRequests: true
  mixedDrivers: allow
- {name: directx.microsoft.com/display, match: {kind: display}}
assignmentMode: class-guid
injection: kubelet
runtimeFiles:
  nvidia:
    remove: [nvidia-smi.exe, "bin/*.dll"]
    add:
    - tool.exe
    - {source: x32/*.dll, folder: SysWOW64}
    - {source: a.exe, destination: b.exe}
  0x8086: {add: [i.exe]}
extraMounts:
  sources: host-folders
  hostFolders: ['D:\models', 'c:/Tools/x']
  destinations: ['C:\app', 'C:\Windows\System32']
  max: 4
visibilityHints: off
`
}

func TestParseEverything(t *testing.T) {
	t.Parallel()
	got, err := Parse([]byte(everything()))
	if err != nil {
		t.Fatal(err)
	}
	no, yes := false, true
	want := Config{
		StateDir: abs("/s"), RuntimeDir: abs("/r"), Inventory: abs("/i.yaml"), HostRoot: abs("/host"), ContainerOS: "windows",
		ServedBy: "shim", FailOnInitError: true,
		Kubelet:        Kubelet{DevicePlugins: abs("/k/dp"), PodResources: abs("/k/pr.sock")},
		Containerd:     Containerd{NRISocket: abs("/nri.sock"), NRIIndex: "07", CRISocket: abs("/cri.sock")},
		Shim:           Shim{Runtime: "other-shim", Log: abs("/shim.log")},
		Log:            Log{Level: "debug", Format: "json"},
		MetricsAddress: ":9400", PluginMetricsAddress: "[::1]:9401",
		Resources: []Resource{{
			Name: "example.com/big", Match: Match{
				Kind: "display", Vendors: []uint16{0x10DE, 0x1A03}, Descriptions: []string{"NVIDIA Tesla*", "*A10?"}, LocationPaths: []string{"PCIROOT(0)#*"},
				MinMemory: 8 << 30, MaxMemory: 16 << 30, MinDriver: DriverVersion{31}, MaxDriver: DriverVersion{32, 65535, 65535, 65535},
				Integrated: &no, Detachable: &yes,
			},
			Replicas: 1024, Policy: Packed, MaxPerContainer: 2048, ExclusiveRequests: true, MixedDrivers: true,
		}, {
			Name: "directx.microsoft.com/display", Match: Match{Kind: "display"}, Replicas: 2, Policy: Distributed,
		}},
		Assignment: AssignByClass, Injection: InjectByKubelet,
		RuntimeFiles: []RuntimeFiles{
			{Vendor: 0x10DE, Add: []AddedFile{
				{Source: "nvidia-smi.exe", Folder: "System32"},
				{Source: "vulkaninfo-x64.exe", Folder: "System32", Destination: "vulkaninfo.exe"},
				{Source: "vulkaninfo-x86.exe", Folder: "SysWOW64", Destination: "vulkaninfo.exe"},
			}},
			{Vendor: 0x10DE, Remove: []string{"nvidia-smi.exe", `bin\*.dll`}, Add: []AddedFile{
				{Source: "tool.exe", Folder: "System32"}, {Source: `x32\*.dll`, Folder: "SysWOW64"}, {Source: "a.exe", Folder: "System32", Destination: "b.exe"},
			}},
			{Vendor: 0x8086, Add: []AddedFile{{Source: "i.exe", Folder: "System32"}}},
		},
		ExtraMounts: ExtraMounts{
			Sources: MountHostFolders, HostFolders: []string{`D:\models`, `C:\Tools\x`}, Destinations: []string{`C:\app`, `C:\Windows\System32`}, Max: 4,
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestDefaultIsTheFormerConfiguration holds that a node without a file is as it
// was before there were rules.
func TestDefaultIsTheFormerConfiguration(t *testing.T) {
	t.Parallel()
	c := Default()
	want := []Resource{
		{Name: "directx.microsoft.com/display", Match: Match{Kind: "display"}, Replicas: 1, Policy: Distributed},
		{Name: "directx.microsoft.com/compute", Match: Match{Kind: "compute"}, Replicas: 1, Policy: Distributed},
	}
	if diff := cmp.Diff(want, c.Resources); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if c.Shim.Log != filepath.Join(c.StateDir, "shim.log") || c.Containerd.NRIIndex != "50" || c.Log != (Log{Level: "info", Format: "text"}) ||
		c.Assignment != AssignAuto || c.Injection != InjectByRuntime || c.ExtraMounts.Sources != MountDriverStore || !c.VisibilityHints || c.MetricsAddress != "" {
		t.Errorf("%+v", c)
	}
	if parsed, err := Parse([]byte(head)); err != nil || !cmp.Equal(parsed, c) {
		t.Errorf("an empty file: %v\n%s", err, cmp.Diff(c, parsed))
	}
}

func TestPresets(t *testing.T) {
	t.Parallel()
	no := false
	for name, test := range map[string]struct {
		text       string
		rules      []Resource
		assignment Assignment
	}{
		"tensorworks": {"preset: tensorworks\nreplicas: 4\n", []Resource{
			{Name: "directx.microsoft.com/display", Match: Match{Kind: "display", Integrated: &no, Detachable: &no}, Replicas: 4, Policy: Distributed},
			{Name: "directx.microsoft.com/compute", Match: Match{Kind: "compute", Integrated: &no, Detachable: &no}, Replicas: 4, Policy: Distributed},
		}, AssignByPath},
		"microsoft": {"preset: microsoft\n", []Resource{
			{Name: "microsoft.com/directx", Match: Match{Kind: "display", Descriptions: []string{"*nvidia*"}}, Replicas: 1, Policy: Distributed},
		}, AssignByClass},
		"alibaba": {"preset: alibaba\n", []Resource{
			{Name: "windows.alibabacloud.com/directx", Match: Match{Kind: "display"}, Replicas: 1, Policy: Distributed},
		}, AssignByClass},
		"a key counts more": {"assignmentMode: auto\npreset: alibaba\n", []Resource{
			{Name: "windows.alibabacloud.com/directx", Match: Match{Kind: "display"}, Replicas: 1, Policy: Distributed},
		}, AssignAuto},
	} {
		c, err := Parse([]byte(head + test.text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(test.rules, c.Resources); diff != "" || c.Assignment != test.assignment {
			t.Errorf("%s: assignment %s (-want +got):\n%s", name, c.Assignment, diff)
		}
	}
}

func TestParseTakes(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"no rule's match":                 rules("{name: a.b/c}"),
		"a name in upper case":            rules("{name: a.b/C_d.e-F}"),
		"a wider rule behind":             rules("{name: a.b/t4, match: {description: '*T4*'}}", "{name: a.b/all}"),
		"rules that overlap":              rules("{name: a.b/c, match: {vendor: nvidia}}", "{name: a.b/d, match: {kind: display}}"),
		"one name by several rules":       rules("{name: a.b/c, match: {vendor: nvidia}, replicas: 2}", "{name: a.b/c, match: {vendor: amd}, replicas: 4}"),
		"host folders that are not used":  head + "containerOS: linux\nextraMounts: {hostFolders: [/opt/models]}\n",
		"no built-in runtime files":       head + "runtimeFiles: {nvidia: {defaults: false}}\n",
		"inventory is empty":              head + "inventory: ''\n",
		"an anchor":                       head + "resources:\n- &a {name: a.b/c, match: &m {kind: display}}\n- {name: a.b/d, match: {kind: compute}}\n",
		"metrics on a name":               head + "metrics: {address: 'localhost:80'}\n",
		"maximum 31 of a driver 31.x":     rules("{name: a.b/c, match: {driverVersion: {min: 31.5, max: 31}}}"),
		"a memory that is exactly itself": rules("{name: a.b/c, match: {dedicatedMemory: {min: 8Gi, max: 8Gi}}}"),
	} {
		if _, err := Parse([]byte(text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, says string }{
		"empty":           {"", "config.yaml:1: the file is empty"},
		"only a comment":  {"# nothing\n", "empty"},
		"no kind":         {"stateDir: /x\n", "kind is missing"},
		"other kind":      {"apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\n", `config.yaml:2: kind: the string "Inventory" is not known`},
		"later version":   {"apiVersion: directx.microsoft.com/v2\nkind: Configuration\n", "v2"},
		"unknown key":     {head + "statedir: /x\n", `config.yaml:3: the key "statedir" is not known; write it stateDir`},
		"unknown below":   {head + "log:\n  colour: red\n", `config.yaml:4: log: the key "colour" is not known; allowed are level and format`},
		"wrong type":      {head + "shim: 3\n", "config.yaml:3: shim: must be a mapping with runtime and log, not the number 3"},
		"twice":           {head + "stateDir: /x\nstateDir: /y\n", "config.yaml:4: stateDir: is there twice"},
		"not YAML":        {"{", "config.yaml:1: the YAML that begins here cannot be read"},
		"second document": {head + "---\n" + head, "second"},
		"too long":        {head + strings.Repeat("#", maxSize), "bytes"},
		"too many values": {head + "resources: [" + strings.Repeat("{},", 300) + "]\n", "at most 256"},

		"relative path":     {head + "inventory: gpus.yaml\n", `inventory: "gpus.yaml" is not an absolute path`},
		"empty path":        {head + "stateDir: ''\n", "stateDir: is empty"},
		"relative shim":     {head + "shim: {runtime: ../shim}\n", "shim.runtime"},
		"index":             {head + "containerd: {nriIndex: 100}\n", `containerd.nriIndex: "100" is not a number from 00 to 99`},
		"address":           {head + "metrics: {address: ':0'}\n", "metrics.address"},
		"address, a number": {head + "metrics: {address: 9400}\n", "must be a string"},
		"address, no port":  {head + "metrics: {pluginAddress: localhost}\n", "metrics.pluginAddress"},
		"hint":              {head + "visibilityHints: false\n", "must be one of on, off, not false; write it in quotes"},
		"choice":            {head + "assignmentMode: guid\n", `assignmentMode: "guid" is none of auto, location-path, class-guid`},
		"boolean":           {head + "failOnInitError: 'yes'\n", "must be true or false"},
		"no replicas":       {head + "replicas: 0\n", "config.yaml:3: replicas: 0 is not possible; choose 1 to 1024"},
		"wrapped replicas":  {head + "replicas: -1\n", "-1 is not possible"},
		"fraction":          {head + "replicas: 1.5\n", "must be a whole number"},
		"octal to others":   {head + "replicas: 010\n", "010 begins with a 0, by which some take it for an octal number; write it without"},

		"no rules":              {head + "resources: []\n", "resources: is empty"},
		"preset and rules":      {head + "preset: alibaba\nresources: [{name: a.b/c}]\n", "stands beside the preset alibaba"},
		"unknown preset":        {head + "preset: nvidia\n", "preset: \"nvidia\" is none of tensorworks, microsoft, alibaba"},
		"no name":               {rules("{replicas: 2}"), "config.yaml:4: resources[0]: name is missing"},
		"rule's replicas":       {rules("{name: a.b/c}", "{name: a.b/d, replicas: 0}"), "config.yaml:5: resources[1].replicas: 0 is not possible; choose 1 to 1024"},
		"many replicas":         {rules("{name: a.b/c, replicas: 1025}"), "choose 1 to 1024"},
		"huge replicas":         {rules("{name: a.b/c, replicas: 4294967297}"), "choose 1 to 1024"},
		"policy":                {rules("{name: a.b/c, allocationPolicy: random}"), `"random" is none of distributed, packed`},
		"mixed drivers":         {rules("{name: a.b/c, mixedDrivers: true}"), "must be a string, not true"},
		"no limit":              {rules("{name: a.b/c, maxPerContainer: 0}"), "maxPerContainer"},
		"never exclusive":       {rules("{name: a.b/c, replicas: 4, exclusiveRequests: true, maxPerContainer: 2}"), "less than a whole GPU's 4 replicas"},
		"kind":                  {rules("{name: a.b/c, match: {kind: render}}"), `"render" is none of display, compute`},
		"vendor":                {rules("{name: a.b/c, match: {vendor: Nvidia}}"), `"Nvidia" is not a vendor; write amd, intel, microsoft, nvidia and qualcomm`},
		"vendor 0":              {rules("{name: a.b/c, match: {vendor: 0x0}}"), "is not a vendor"},
		"vendor without its 0x": {rules("{name: a.b/c, match: {vendor: 8086}}"), `"8086" is not a vendor; write amd`},
		"vendor too great":      {rules("{name: a.b/c, match: {vendor: 65536}}"), "is not a vendor"},
		"no vendor":             {rules("{name: a.b/c, match: {vendor: []}}"), "nothing fits"},
		"empty glob":            {rules("{name: a.b/c, match: {description: ''}}"), "is empty"},
		"space at an end":       {rules("{name: a.b/c, match: {description: 'T4 '}}"), "white space"},
		"memory":                {rules("{name: a.b/c, match: {dedicatedMemory: {min: 8G}}}"), "is not an amount of memory"},
		"memory, no mapping":    {rules("{name: a.b/c, match: {dedicatedMemory: 8Gi}}"), "must be a mapping with min and max"},
		"memory upside down":    {rules("{name: a.b/c, match: {dedicatedMemory: {min: 8Gi, max: 4Gi}}}"), "less than its min"},
		"version":               {rules("{name: a.b/c, match: {driverVersion: {min: latest}}}"), "is not a driver version"},
		"versions upside down":  {rules("{name: a.b/c, match: {driverVersion: {min: 31.0.1, max: 31.0.0}}}"), "less than its min"},

		"name without domain":   {rules("{name: gpu}"), "is not the name of an extended resource"},
		"two slashes":           {rules("{name: a/b/c}"), "is not the name of an extended resource"},
		"Kubernetes' domain":    {rules("{name: kubernetes.io/gpu}"), "Kubernetes' own domain"},
		"below it":              {rules("{name: x.kubernetes.io/gpu}"), "Kubernetes' own domain"},
		"quota":                 {rules("{name: requests.example.com/gpu}"), "quotas"},
		"domain in upper case":  {rules("{name: Example.com/gpu}"), "is not a domain"},
		"domain with an end":    {rules("{name: example.com./gpu}"), "is not a domain"},
		"long domain":           {rules("{name: " + strings.Repeat("a.", 122) + "b/gpu}"), "is not a domain"},
		"long name":             {rules("{name: a.b/" + strings.Repeat("a", 64) + "}"), "of 63 characters at most"},
		"name with a bad end":   {rules("{name: a.b/gpu-}"), "is not a resource's name"},
		"names told alike":      {rules("{name: a.b/c-d, match: {kind: display}}", "{name: a.b/c.d, match: {kind: compute}}"), "too alike: both would be told to containers by"},
		"names of another case": {rules("{name: a.b/c, match: {kind: display}}", "{name: a.b/C, match: {kind: compute}}"), "too alike"},
		"policies differ":       {rules("{name: a.b/c, match: {kind: display}}", "{name: a.b/c, match: {kind: compute}, allocationPolicy: packed}"), "config.yaml:5: resources[1]: is of the resource a.b/c as resources[0] is, and differs in allocationPolicy"},
		"a rule after all":      {rules("{name: a.b/c}", "{name: a.b/d, match: {vendor: amd}}"), "config.yaml:5: resources[1]: gets no GPU, because resources[0] takes all"},
		"a narrower rule":       {rules("{name: a.b/c, match: {vendor: [amd, nvidia]}}", "{name: a.b/d, match: {vendor: amd, kind: compute}}"), "gets no GPU"},

		"drive root":          {mounts("windows", `C:\`), "is part of"},
		"Windows":             {mounts("windows", `C:\WINDOWS`), `C:\Windows\System32\config`},
		"accounts":            {mounts("windows", `c:\windows\system32\CONFIG\RegBack`), "secrets"},
		"all programs' data":  {mounts("windows", `D:\ProgramData`), "secrets"},
		"ours":                {mounts("windows", `C:\ProgramData\directx-nri\x`), "secrets"},
		"short name":          {mounts("windows", `C:\PROGRA~3\directx-nri`), "in full"},
		"UNC":                 {mounts("windows", `\\server\share`), "is not the absolute path"},
		"device":              {mounts("windows", `\\.\C:\x`), "is not the absolute path"},
		"stream":              {mounts("windows", `C:\models:x`), "is not the absolute path"},
		"dots":                {mounts("windows", `C:\models\..\Users`), "is not the absolute path"},
		"trailing dot":        {mounts("windows", `C:\Users.\me`), "is not the absolute path"},
		"relative":            {mounts("windows", `models`), "is not the absolute path"},
		"other system's":      {mounts("windows", `/opt`), "is not the absolute path"},
		"root":                {mounts("linux", "/"), "secrets"},
		"etc":                 {mounts("linux", "/etc/ssl"), "secrets"},
		"above the kubelet's": {mounts("linux", "/var/lib"), "/var/lib/kubelet"},
		"not clean":           {mounts("linux", "/opt/../etc"), "is not a clean absolute path"},
		"moved state":         {head + "stateDir: /data/state\ncontainerOS: linux\nextraMounts: {hostFolders: [/data]}\n", "/data/state"},
		"no folder":           {head + "extraMounts: {sources: host-folders}\n", "needs extraMounts.hostFolders"},
		"no destination":      {head + "extraMounts: {destinations: []}\n", "extraMounts.destinations: is empty"},
		"destination":         {head + "containerOS: windows\nextraMounts: {destinations: [System32]}\n", "extraMounts.destinations[0]"},
		"no mounts at all":    {head + "extraMounts: {max: 0}\n", "choose 1 to 1024"},

		"file in the vendor's way": {head + "runtimeFiles: {nvidia: {add: ['..\\x.exe']}}\n", "is not a file below the driver store"},
		"absolute file":            {head + "runtimeFiles: {nvidia: {add: ['C:\\x.exe']}}\n", "is not a file below the driver store"},
		"removed stream":           {head + "runtimeFiles: {nvidia: {remove: ['x.exe:y']}}\n", "is not a file below the driver store"},
		"no source":                {head + "runtimeFiles: {nvidia: {add: [{folder: System32}]}}\n", "source is missing"},
		"folder":                   {head + "runtimeFiles: {nvidia: {add: [{source: x.exe, folder: Temp}]}}\n", "is none of System32, SysWOW64"},
		"destination's folder":     {head + "runtimeFiles: {nvidia: {add: [{source: x.exe, destination: drivers\\x.exe}]}}\n", "is not a file's name"},
		"one name for many":        {head + "runtimeFiles: {nvidia: {add: [{source: '*.exe', destination: x.exe}]}}\n", "one name for what may be several"},
		"vendor twice":             {head + "runtimeFiles: {nvidia: {}, 0x10de: {}}\n", "it must be unique"},
		"vendor twice, in decimal": {head + "runtimeFiles: {nvidia: {}, '4318': {}}\n", "it must be unique"},
		"vendor key":               {head + "runtimeFiles: {matrox: {}}\n", "is not a vendor"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if runtime.GOOS == "windows" && strings.Contains(test.text, "stateDir: /data") {
				return
			}
			_, err := Parse([]byte(test.text))
			if err == nil || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line that says %q", err, test.says)
			}
			if problems := (strictyaml.Problems)(nil); !errors.As(err, &problems) {
				t.Errorf("%T has no problems", err)
			}
		})
	}
}

// mounts is a file with one host folder.
func mounts(os, folder string) string {
	return head + "containerOS: " + os + "\nextraMounts: {sources: host-folders, hostFolders: ['" + folder + "']}\n"
}

func TestParseTellsAllProblemsInOneLine(t *testing.T) {
	t.Parallel()
	_, err := Parse([]byte(head + "replicas: 0\nlog: {level: loud}\nresources: [" + strings.Repeat("{replicas: 0},", 12) + "]\n"))
	if err == nil || strings.Contains(err.Error(), "\n") {
		t.Fatal(err)
	}
	for _, want := range []string{"config.yaml:3: replicas: 0", "; config.yaml:4: log.level: \"loud\"", "; and 16 more"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

func TestOverrides(t *testing.T) {
	t.Parallel()
	environ := []string{"DIRECTX_NRI_STATE_DIR=" + abs("/v"), "DIRECTX_NRI_REPLICAS=3", "DIRECTX_NRI_SERVICE_PORT=80", "DIRECTX_NRI_LOG_LEVEL=", "HOME=/root"}
	c, err := Parse([]byte(head+"stateDir: "+abs("/f")+"\n"), Environment(environ)...)
	if err != nil || c.StateDir != abs("/v") || c.Shim.Log != filepath.Join(abs("/v"), "shim.log") || c.Resources[1].Replicas != 3 || c.Log.Level != "info" {
		t.Errorf("%+v, %v", c, err)
	}
	if diff := cmp.Diff([]string{"DIRECTX_NRI_SERVICE_PORT=80", "DIRECTX_NRI_LOG_LEVEL=", "HOME=/root"}, WithoutEnvironment(environ)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, test := range map[string]struct {
		override Override
		says     string
	}{
		"variable":        {Environment([]string{"DIRECTX_NRI_METRICS_ADDRESS=80"})[0], `DIRECTX_NRI_METRICS_ADDRESS: "80" is not host:port`},
		"unknown setting": {Override{"--x", "x", "y"}, "--x: there is no setting x"},
		"control":         {Override{"--shim", "shim.runtime", "a\nb"}, "--shim: "},
	} {
		var wrong *OverrideError
		if _, err := Parse([]byte(head), test.override); !errors.As(err, &wrong) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %q", name, err, test.says)
		}
	}
	if _, err := Parse([]byte(head+"replicas: 0\n"), Override{"--replicas", "replicas", "2"}); err == nil {
		t.Error("a wrong file passes because a flag counts more")
	}
}

func TestFallbackLeavesOutWhatIsWrong(t *testing.T) {
	t.Parallel()
	c := Fallback(Override{"A", "log.level", "loud"}, Override{"B", "stateDir", abs("/b")}, Override{"C", "no.such", "x"}, Override{"D", "log.level", "debug"})
	if c.StateDir != abs("/b") || c.Log.Level != "debug" || !cmp.Equal(c.Resources, Default().Resources) {
		t.Errorf("%+v", c)
	}
	if !cmp.Equal(Fallback(), Default()) {
		t.Error("without anything it is not the default")
	}
}

func TestVariables(t *testing.T) {
	t.Parallel()
	names := map[string]bool{Variable: true}
	for _, s := range Settings() {
		name := s.Variable()
		if names[name] || strings.ToUpper(name) != name || s.Usage == "" || s.Example == "" {
			t.Errorf("%s: variable %s, usage %q, example %q", s.Key, name, s.Usage, s.Example)
		}
		names[name] = true
		if (s.Flag == "") != (s.Programs == 0) {
			t.Errorf("%s: flag %q of programs %b", s.Key, s.Flag, s.Programs)
		}
	}
	for _, want := range []string{"DIRECTX_NRI_STATE_DIR", "DIRECTX_NRI_CONTAINER_OS", "DIRECTX_NRI_FAIL_ON_INIT_ERROR", "DIRECTX_NRI_CONTAINERD_NRI_SOCKET", "DIRECTX_NRI_KUBELET_DEVICE_PLUGIN_DIR"} {
		if !names[want] {
			t.Errorf("no %s in %v", want, names)
		}
	}
}

func TestKeepUntilRestart(t *testing.T) {
	t.Parallel()
	before := Default()
	next, err := Parse([]byte(head + "stateDir: " + abs("/new") + "\nlog: {level: debug}\nreplicas: 2\ninjection: kubelet\nmetrics: {address: ':1'}\n"))
	if err != nil {
		t.Fatal(err)
	}
	got, keys := KeepUntilRestart(next, before)
	if diff := cmp.Diff([]string{"injection", "stateDir", "metrics.address"}, keys); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got.StateDir != before.StateDir || got.Injection != before.Injection || got.MetricsAddress != "" || got.Log.Level != "debug" || got.Resources[0].Replicas != 2 {
		t.Errorf("%+v", got)
	}
}

// newFolder returns a configuration file's path in a folder of its own.
func newFolder(t *testing.T) (folder, path string) {
	t.Helper()
	folder = t.TempDir()
	return folder, filepath.Join(folder, "config.yaml")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	folder, path := newFolder(t)
	if got, err := Read(path); err != nil || !cmp.Equal(got, Default()) {
		t.Errorf("no file: %+v, %v; want the default", got, err)
	}
	write(t, path, head+"shim: {runtime: x}\n")
	if got, err := Read(path); err != nil || got.Shim.Runtime != "x" {
		t.Errorf("%+v, %v", got, err)
	}
	write(t, path, head+"shim: {runtime: x/y}\n")
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), path+":3: shim.runtime: ") {
		t.Errorf("error %v does not name the place", err)
	}
	if runtime.GOOS == "windows" {
		return
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	for name, read := range map[string]func(string, ...Override) (Config, error){"Read": Read, "ReadVolume": ReadVolume} {
		if _, err := read(path); !errors.Is(err, durable.ErrUntrusted) {
			t.Errorf("%s: a file that everybody can write: error %v, want ErrUntrusted", name, err)
		}
	}
	if err := os.Chmod(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	for name, read := range map[string]func(string, ...Override) (Config, error){"Read": Read, "ReadVolume": ReadVolume} {
		if _, err := read(path); !errors.Is(err, durable.ErrNotPrivate) {
			t.Errorf("%s: a folder that everybody can write to: error %v, want ErrNotPrivate", name, err)
		}
	}
}

// TestReadByLinks reads a file that lies where a ConfigMap's does.
func TestReadByLinks(t *testing.T) {
	t.Parallel()
	folder, path := newFolder(t)
	if err := os.Mkdir(filepath.Join(folder, "..1"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(folder, "..1", "config.yaml"), head+"replicas: 7\n")
	if err := errors.Join(os.Symlink("..1", filepath.Join(folder, "..data")), os.Symlink(filepath.Join("..data", "config.yaml"), path)); err != nil {
		t.Skip(err)
	}
	for name, read := range map[string]func(string, ...Override) (Config, error){"Read": Read, "ReadVolume": ReadVolume} {
		if c, err := read(path); err != nil || c.Resources[0].Replicas != 7 {
			t.Errorf("%s: %+v, %v", name, c.Resources, err)
		}
	}
}

func TestLastGood(t *testing.T) {
	t.Parallel()
	_, path := newFolder(t)
	copied := path + LastGood
	if err := KeepLastGood(path); err != nil {
		t.Errorf("no file: %v", err)
	}
	write(t, path, head+"replicas: 2\n")
	if err := KeepLastGood(path); err != nil {
		t.Fatal(err)
	}
	first, err := os.Stat(copied)
	if err != nil {
		t.Fatal(err)
	}
	if err := KeepLastGood(path); err != nil {
		t.Fatal(err)
	}
	if again, err := os.Stat(copied); err != nil || !os.SameFile(first, again) {
		t.Errorf("the same content was copied anew: %v", err)
	}
	write(t, path, head+"replicas: 3\n")
	if c, bad, err := ReadOrLastGood(path); err != nil || bad != nil || c.Resources[0].Replicas != 3 {
		t.Errorf("a good file: %v, %v, %v", c.Resources, bad, err)
	}
	write(t, path, head+"replicas: 0\n")
	if err := KeepLastGood(path); err == nil {
		t.Error("a bad file was copied")
	}
	c, bad, err := ReadOrLastGood(path)
	if err != nil || bad == nil || !strings.Contains(bad.Error(), "replicas: 0 is not possible") || c.Resources[0].Replicas != 2 {
		t.Errorf("a bad file: %v, %v, %v", c.Resources, bad, err)
	}
	var wrong *OverrideError
	if _, _, err := ReadOrLastGood(path, Override{"X", "replicas", "0"}); !errors.As(err, &wrong) {
		t.Errorf("a bad file and a bad variable: %v, want the variable's error", err)
	}
	write(t, copied, head+"replicas: 0\n")
	if _, _, err := ReadOrLastGood(path); err == nil {
		t.Error("a bad copy was used")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if c, bad, err := ReadOrLastGood(path); err != nil || bad != nil || c.Resources[0].Replicas != 1 {
		t.Errorf("no file: %v, %v, %v; want the defaults", c.Resources, bad, err)
	}
}

func TestLastGoodIsAsTrustedAsTheFile(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("modes are Unix'")
	}
	folder, path := newFolder(t)
	write(t, path, head)
	write(t, path+LastGood, head+"replicas: 2\n")
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadOrLastGood(path); !errors.Is(err, durable.ErrUntrusted) {
		t.Errorf("a file that others can write: %v", err)
	}
	if err := KeepLastGood(path); err != nil {
		t.Errorf("no copy of what is not read is no failure: %v", err)
	}
	write(t, path, "bad")
	if err := errors.Join(os.Chmod(path, 0o600), os.Chmod(path+LastGood, 0o666)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadOrLastGood(path); err == nil || !strings.Contains(err.Error(), "config.yaml:1: ") {
		t.Errorf("a copy that others can write: %v, want the file's own error", err)
	}
	_ = folder
}

func TestMarshal(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"defaults": head, "everything": everything(), "preset": head + "preset: tensorworks\n",
		"no built-in files": head + "runtimeFiles: {nvidia: {defaults: false}, amd: {remove: ['*.txt']}}\n",
	} {
		again(t, name, text)
	}
}

// A program that reads YAML 1.1 takes a plain off for false, which we refuse.
func TestMarshalQuotesWhatIsABooleanElsewhere(t *testing.T) {
	t.Parallel()
	c, err := Parse([]byte(head + "visibilityHints: 'off'\nextraMounts: {sources: 'off'}\n"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := Marshal(c)
	if err != nil || !strings.Contains(string(data), "visibilityHints: 'off'\n") || !strings.Contains(string(data), "sources: 'off'\n") {
		t.Errorf("%v: %s", err, data)
	}
}

// again holds that what text says is the same when it is written and read again.
func again(t *testing.T, name, text string) {
	t.Helper()
	c, err := Parse([]byte(text))
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	written, err := Marshal(c)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	read, err := Parse(written)
	if err != nil {
		t.Errorf("%s: written: %v\n%s", name, err, written)
		return
	}
	if diff := cmp.Diff(c, read); diff != "" {
		t.Errorf("%s (-read +again):\n%s\n%s", name, diff, written)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", head, head + "shim: {runtime: x, log: /y}\n", "a: &a [*a]", head + "---\n", head + "stateDir: !!binary x\n", "? [a]: b\n", everything(),
		head + "preset: tensorworks\nreplicas: 3\n", mounts("linux", "/opt"), rules("{name: a.b/c, match: {vendor: 0x1}}", "{name: a.b/c, match: {driverVersion: {max: 1}}}"),
		head + "runtimeFiles: {nvidia: {defaults: false}}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err != nil {
			if problems := (strictyaml.Problems)(nil); strings.Contains(err.Error(), "\n") || !errors.As(err, &problems) {
				t.Fatalf("error is more than one line, or has no problems: %q", err)
			}
			return
		}
		names := map[string]bool{}
		for _, r := range c.Resources {
			if r.Replicas < 1 || r.Replicas > MaxReplicas || r.MaxPerContainer < 0 || checkResourceName(r.Name) != nil || r.Policy != Distributed && r.Policy != Packed {
				t.Fatalf("accepted %+v", r)
			}
			names[r.Name] = true
		}
		if len(names) == 0 || !filepath.IsAbs(c.StateDir) || !filepath.IsAbs(c.Shim.Log) || c.ExtraMounts.Max < 1 {
			t.Fatalf("accepted %+v", c)
		}
		for _, s := range Settings() {
			if s.Key == "preset" || s.Key == "replicas" {
				continue
			}
			if _, err := s.parse(s.Value(c)); err != nil {
				t.Fatalf("accepted %s: %v", s.Key, err)
			}
		}
		again(t, "fuzzed", string(data))
	})
}

func BenchmarkParse(b *testing.B) {
	for _, row := range []struct{ name, text string }{{"small", head + "inventory: " + abs("/i.yaml") + "\n"}, {"everything", everything()}} {
		b.Run(row.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse([]byte(row.text)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
