package ocispec

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

const store = `C:\Windows\System32\DriverStore\FileRepository\nv.inf_amd64_1`

func windowsEdits() Edits {
	return Edits{
		WindowsDevices: []specs.WindowsDevice{{ID: "PCIROOT(0)#PCI(1B00)", IDType: IDTypeLocationPath}},
		Mounts: []specs.Mount{
			ReadOnlyMount("windows", store+`\nvcuda_loader64.dll`, `C:\Windows\System32\nvcuda.dll`),
			ReadOnlyMount("windows", store+`\nvapi64.dll`, `C:\Windows\System32\nvapi64.dll`),
			ReadOnlyMount("windows", store+`\nvcuda_loader32.dll`, `C:\Windows\SysWOW64\nvcuda.dll`),
		},
	}
}

func linuxEdits() Edits {
	node := specs.LinuxDevice{Path: "/dev/dxg", Type: "c", Major: 10, Minor: 125, FileMode: new(os.FileMode(0o666)), UID: new(uint32(0)), GID: new(uint32(44))}
	return Edits{
		LinuxDevices: []LinuxDevice{{node, "/dev/dxg"}},
		Mounts:       []specs.Mount{ReadOnlyMount("linux", "/usr/lib/wsl/lib/libd3d12.so", "/usr/lib/wsl/lib/libd3d12.so")},
	}
}

// apply parses a spec and applies edits.
func apply(data []byte, edits Edits) ([]byte, error) {
	spec, err := ParseSpec(data)
	if err != nil {
		return nil, err
	}
	edited, _, err := spec.Apply(edits)
	return edited, err
}

func TestApply(t *testing.T) {
	t.Parallel()
	windows, linux := windowsEdits(), linuxEdits()
	env := Edits{Env: []string{"A=new"}}
	class := Edits{WindowsDevices: []specs.WindowsDevice{{ID: DisplayClass, IDType: IDTypeClass}}}

	for name, test := range map[string]struct {
		edits    Edits
		in, want string
	}{
		"Windows": {
			windows,
			`{"ociVersion":"1.0.2","future":{"z":1,"a":12345678901234567890},"windows":{"layerFolders":["C:\\l"],"new":true}}`,
			`{"future":{"z":1,"a":12345678901234567890},"mounts":[{"destination":"C:\\Windows\\System32\\nvcuda.dll","source":"` + jsonPath(store) + `\\nvcuda_loader64.dll","options":["ro"]},` +
				`{"destination":"C:\\Windows\\System32\\nvapi64.dll","source":"` + jsonPath(store) + `\\nvapi64.dll","options":["ro"]},` +
				`{"destination":"C:\\Windows\\SysWOW64\\nvcuda.dll","source":"` + jsonPath(store) + `\\nvcuda_loader32.dll","options":["ro"]}],"ociVersion":"1.0.2",` +
				`"windows":{"devices":[{"id":"PCIROOT(0)#PCI(1B00)","idType":"vpci-location-path"}],"layerFolders":["C:\\l"],"new":true}}`,
		},
		"Windows, the pod has a mount and a device of its own": {
			windows,
			`{"mounts":[{"destination":"c:/windows/system32/NVCUDA.DLL","source":"D:\\mine","x":1}],` +
				`"windows":{"devices":[{"id":"pciroot(0)#pci(1b00)","idType":"vpci-location-path"}]},"annotations":{"a":"b<"}}`,
			`{"annotations":{"a":"b<"},"mounts":[{"destination":"c:/windows/system32/NVCUDA.DLL","source":"D:\\mine","x":1},` +
				`{"destination":"C:\\Windows\\System32\\nvapi64.dll","source":"` + jsonPath(store) + `\\nvapi64.dll","options":["ro"]},` +
				`{"destination":"C:\\Windows\\SysWOW64\\nvcuda.dll","source":"` + jsonPath(store) + `\\nvcuda_loader32.dll","options":["ro"]}],` +
				`"windows":{"devices":[{"id":"pciroot(0)#pci(1b00)","idType":"vpci-location-path"}]}}`,
		},
		"Linux": {
			linux,
			`{"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}],"pids":{"limit":1}},"seccomp":{"x":[]}},"mounts":null}`,
			`{"linux":{"devices":[{"path":"/dev/dxg","type":"c","major":10,"minor":125,"fileMode":438,"uid":0,"gid":44}],` +
				`"resources":{"devices":[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":10,"minor":125,"access":"rw"}],"pids":{"limit":1}},"seccomp":{"x":[]}},` +
				`"mounts":[{"destination":"/usr/lib/wsl/lib/libd3d12.so","type":"bind","source":"/usr/lib/wsl/lib/libd3d12.so","options":["bind","ro","rprivate","nosuid","nodev"]}]}`,
		},
		"environment":              {env, `{"process":{"args":["x"],"env":["A=old","B=1"]}}`, `{"process":{"args":["x"],"env":["B=1","A=new"]}}`},
		"environment, escaped key": {env, `{"process":{"\u0065nv":["B=1"]}}`, `{"process":{"env":["B=1","A=new"]}}`},
		"environment, none":        {env, `{"process":{"env":null},"process2":1}`, `{"process":{"env":["A=new"]},"process2":1}`},
		"environment, as the runtimes read it": {
			env, "{\"process\":{ \"env\":[ \"B=\\u0031\" ,\n\"A2=x\", null, \"A\", \"C=\xff\" ]}}",
			"{\"process\":{\"env\":[\"B=1\",\"A2=x\",\"\",\"A\",\"C=\ufffd\",\"A=new\"]}}",
		},
		"environment, replaced": {
			env, `{"process":{"env":["A=1", "B=\u0031","\u0041=2",null , "A=3"]}}`, `{"process":{"env":["B=1","","A=new"]}}`,
		},
		"environment, Windows":             {env, `{"windows":{},"process":{"env":["a=old","B=1"]}}`, `{"process":{"env":["B=1","A=new"]},"windows":{}}`},
		"environment, there already":       {env, `{"process":{"env": ["A=1","\u0041=new" ]}}`, `{"process":{"env": ["A=1","\u0041=new" ]}}`},
		"environment, there, but not last": {env, `{"process":{"env":["A=new","A=old"]}}`, `{"process":{"env":["A=new"]}}`},
		"environment, several": {
			Edits{Env: []string{"A=1", "B=<&>", "C=x", "A=2"}}, `{"process":{"env":["C=x","B="]}}`, `{"process":{"env":["C=x","B=<&>","A=2"]}}`,
		},
		"nothing": {Edits{}, `{ "a" : 1 }`, `{ "a" : 1 }`},
		"class":   {class, `{"windows":{}}`, `{"windows":{"devices":[{"id":"` + DisplayClass + `","idType":"class"}]}}`},
		"removal of a mount": {
			Edits{RemoveMounts: []string{"/proc/interlock"}},
			`{"linux":{}, "mounts": [{"destination":"/proc","new":1}, {"destination":"/proc//interlock"} ,{"destination":"/data"}], "x": 1}`,
			`{"linux":{},"mounts":[{"destination":"/proc","new":1},{"destination":"/data"}],"x":1}`,
		},
		"removal of the only mount": {Edits{RemoveMounts: []string{"/a"}}, `{"linux":{},"mounts":[{"destination":"/a"}]}`, `{"linux":{},"mounts":[]}`},
		"removal and addition of a mount": {
			Edits{RemoveMounts: []string{"/a"}, Mounts: []specs.Mount{{Destination: "/b", Source: "/c"}}},
			`{"linux":{},"mounts":[{"destination":"/a"},{"destination":"/d"}]}`, `{"linux":{},"mounts":[{"destination":"/d"},{"destination":"/b","source":"/c"}]}`,
		},
		"nothing to remove": {
			Edits{RemoveMounts: []string{"/a"}, RemoveWindowsDevices: []specs.WindowsDevice{{ID: "a", IDType: "b"}}},
			`{"mounts": [ {"destination":"/d"} ], "windows": {"devices": [ ]}}`, `{"mounts": [ {"destination":"/d"} ], "windows": {"devices": [ ]}}`,
		},
		"removal and addition of a Windows device": {
			Edits{RemoveWindowsDevices: []specs.WindowsDevice{{ID: "interlock", IDType: "ours"}}, WindowsDevices: []specs.WindowsDevice{{ID: "PCI", IDType: IDTypeLocationPath}}},
			`{"windows":{"new":{},"devices":[{"id":"interlock","idType":"ours"},{"id":"interlock","idType":"other"}]}}`,
			`{"windows":{"devices":[{"id":"interlock","idType":"other"},{"id":"PCI","idType":"vpci-location-path"}],"new":{}}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := apply([]byte(test.in), test.edits)
			testutil.NoError(t, err)
			if string(got) != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			again, err := apply(got, test.edits)
			if err != nil || !bytes.Equal(again, got) {
				t.Errorf("applied twice: %v\n%s", err, again)
			}
		})
	}
}

func jsonPath(p string) string { return strings.ReplaceAll(p, `\`, `\\`) }

func TestApplyRefuses(t *testing.T) {
	t.Parallel()
	edits := windowsEdits()
	edits.Env = []string{"A=B"}
	for _, spec := range []string{
		``, `null`, `[]`, `{`, `{} {}`, `{"mounts":{}}`, `{"mounts":[1]}`, `{"windows":[]}`, `{"windows":{"devices":{}}}`,
		`{"Windows":{}}`, `{"mounts":[],"mounts":[]}`,
		`{"mounts":[}`, `{"mounts":[{"destination":"/a"`, `{"mounts" []}`, `{"mounts":[] "a":1}`, `{"mounts":]}`, `{"a":"b`, `{"a":\"b}`, `{,}`,
		`{"process":[]}`, `{"process":{"env":{}}}`, `{"process":{"env":["A=B",1]}}`, `{"process":{"env":"A=B"}}`, `{"process":{"env":[],"Env":[]}}`, `{"process":{"env":[],"env":[]}}`,
	} {
		if got, err := apply([]byte(spec), edits); !errors.Is(err, errSpec) {
			t.Errorf("%s: %s, error %v, want errSpec", spec, got, err)
		}
	}
}

// TestParseSpecReadsFactsOnly: a container that gets no edits starts, whatever is in lists that
// only edits matter to.
func TestParseSpecReadsFactsOnly(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{
		`{"mounts":{}}`, `{"mounts":[1]}`, `{"mounts":[],"Mounts":[]}`, `{"linux":1}`, `{"linux":{"devices":[1],"resources":[]}}`, `{"linux":{"resources":{"devices":{}}}}`,
	} {
		if _, err := ParseSpec([]byte(spec)); err != nil {
			t.Errorf("%s: %v", spec, err)
		}
		if got, err := apply([]byte(spec), Edits{Env: []string{"A=B"}}); !errors.Is(err, errSpec) {
			t.Errorf("%s: %s, error %v, want errSpec", spec, got, err)
		}
	}
}

func TestDestinationKey(t *testing.T) {
	t.Parallel()
	const file = `C:\Windows\System32\nvcuda.dll`
	for destination, same := range map[string]bool{
		`c:/windows/SYSTEM32/nvcuda.dll`: true, `\Windows\System32\nvcuda.dll`: true, `/Windows/System32/nvcuda.dll`: true,
		`D:\Windows\System32\nvcuda.dll`: false, `\\Windows\System32\nvcuda.dll`: false, `Windows\System32\nvcuda.dll`: false, `\\.\pipe\nvcuda.dll`: false,
	} {
		if got := DestinationKey("windows", destination) == DestinationKey("windows", file); got != same {
			t.Errorf("%s: %t", destination, got)
		}
	}
}

// FuzzSpec compares with the runtimes, which decode specs with Go's package json:
// they read the same facts, and an edited spec as the edited one. What they refuse
// does not matter. What they accept is refused only if it is no object, or if a key that
// matters exists twice or in another case.
func FuzzSpec(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"mounts":null,"linux":null,"windows":null}`, `{"windows":{"hyperv":{},"devices":[{"id":"x","idType":"class"}]}}`,
		`{"linux":{"devices":[],"resources":{"devices":[{"allow":false,"access":"rwm"}]}},"mounts":[{"destination":"/x","source":"y"}]}`,
		`{"mounts":[{"destination":"/interlock"}],"windows":{"devices":[{"id":"interlock","idType":"ours"}]}}`, `{"mounts":[`, `{"a":"\\`,
		`{"\u006dounts":[],"MOUNTS":[]}`, `{"a":1e9,"b":"\ud800"}`, `{"annotationſ":{"a":"b"},"annotations":{"a":"c","a":"d"}}`, `{"windows":{"devices":[{"ID":"x","id":"y","IDTYPE":"class"},null]}}`,
		`{"process":{"env":null}}`, ` { "process" : {"cwd":"/", "env":[ "A\\" , null, "\u0041=x","B=2", "A=]" ] } } `, "{\"process\":{\"env\":[\"A=\xff\",\"A\",\"\"]}}",
		`{"process":{"env":["\"",1]}}`, `{"process":{"env":{"a":"]"}}}`, `{"process":{"env":["A=1","C=D","A=x"]}}`, `{"process":{"env":[],"Env":["A=1"]}}`,
		`{"mounts":[{"destination":"interlock"}],"windows":{}}`,
	} {
		f.Add([]byte(seed))
	}
	windows, linux := windowsEdits(), linuxEdits()
	windows.RemoveWindowsDevices, linux.RemoveMounts = []specs.WindowsDevice{{ID: "interlock", IDType: "ours"}}, []string{"/interlock"}
	environment := Edits{Env: []string{"A=x", "B=y"}}
	f.Fuzz(func(t *testing.T, data []byte) {
		var read specs.Spec
		readErr := json.Unmarshal(data, &read)
		for _, edits := range []Edits{windows, linux, environment, {}} {
			spec, err := ParseSpec(data)
			refused := func(err error) bool {
				return err != nil && readErr == nil && !errors.Is(err, errAmbiguousKey) && !errors.Is(err, errNotObject)
			}
			if refused(err) {
				t.Fatalf("the runtimes accept what is refused: %v", err)
			}
			if err != nil {
				return
			}
			once, changed, err := spec.Apply(edits)
			if err != nil && !errors.Is(err, errSpec) {
				t.Fatalf("error %v does not match errSpec", err)
			}
			if refused(err) {
				t.Fatalf("the runtimes accept what cannot be edited: %v", err)
			}
			if err != nil || readErr != nil {
				continue
			}
			if want := factsOf(read); !cmp.Equal(spec.SpecInfo, want, cmpopts.EquateEmpty()) {
				t.Fatalf("%+v, the runtimes read %+v", spec.SpecInfo, want)
			}
			var edited specs.Spec
			if err := json.Unmarshal(once, &edited); err != nil {
				t.Fatalf("%v\n%s", err, once)
			}
			checkEdited(t, spec.OS, edited, edits)
			if again, err := ParseSpec(once); err == nil && again.OS != spec.OS {
				continue // Edits of Linux turn a spec of Windows into one of Linux.
			}
			if twice, err := apply(once, edits); err != nil || !bytes.Equal(once, twice) || changed == bytes.Equal(once, data) {
				t.Fatalf("changed: %t, applied twice: %v\nonce  %s\ntwice %s", changed, err, once, twice)
			}
			var before, after map[string]json.RawMessage
			testutil.NoError(t, json.Unmarshal(data, &before), json.Unmarshal(once, &after))
			for key := range before {
				if _, ok := after[key]; !ok {
					t.Fatalf("%q was lost", key)
				}
			}
		}
	})
}

// factsOf returns the facts of a decoded spec.
func factsOf(s specs.Spec) SpecInfo {
	f := SpecInfo{OS: "linux", Annotations: s.Annotations, HasWindows: s.Windows != nil}
	if s.Windows != nil && s.Linux == nil {
		f.OS = "windows"
	}
	if s.Windows != nil {
		f.Devices, f.HyperV = s.Windows.Devices, s.Windows.HyperV != nil
	}
	if s.Process != nil {
		f.Env = s.Process.Env
	}
	return f
}

// checkEdited checks that a decoded spec of this operating system has what edits add and not what they remove.
func checkEdited(t *testing.T, containerOS string, s specs.Spec, edits Edits) {
	t.Helper()
	facts := factsOf(s)
	for _, variable := range edits.Env {
		if value, _ := LookupEnv(containerOS, facts.Env, variable[:1]); value != variable[2:] {
			t.Fatalf("no %s in %v", variable, facts.Env)
		}
	}
	devices := convert(facts.Devices, windowsDeviceKey)
	var nodes, mounts []string
	if s.Linux != nil {
		nodes = convert(s.Linux.Devices, func(d specs.LinuxDevice) string { return d.Path })
	}
	mounts = convert(s.Mounts, func(m specs.Mount) string { return DestinationKey(containerOS, m.Destination) })
	isMissing := slices.ContainsFunc(edits.WindowsDevices, func(d specs.WindowsDevice) bool { return !slices.Contains(devices, windowsDeviceKey(d)) }) ||
		slices.ContainsFunc(edits.LinuxDevices, func(d LinuxDevice) bool { return !slices.Contains(nodes, d.Path) }) ||
		slices.ContainsFunc(edits.Mounts, func(m specs.Mount) bool { return !slices.Contains(mounts, DestinationKey(containerOS, m.Destination)) })
	isLeft := slices.ContainsFunc(edits.RemoveWindowsDevices, func(d specs.WindowsDevice) bool { return slices.Contains(devices, windowsDeviceKey(d)) }) ||
		slices.ContainsFunc(edits.RemoveMounts, func(d string) bool { return slices.Contains(mounts, DestinationKey(containerOS, d)) })
	if isMissing || isLeft {
		t.Fatalf("not as edited: %+v", s)
	}
}
