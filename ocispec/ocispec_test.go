package ocispec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"directx-nri/discovery"
	"directx-nri/internal/winpath"
)

// fakeFiles maps paths to what they resolve to, and names device nodes.
type fakeFiles struct {
	resolve map[string]string
	nodes   map[string]specs.LinuxDevice
}

func (f fakeFiles) ResolveAll(paths []string) (resolved []string, errs []error) {
	resolved, errs = make([]string, len(paths)), make([]error, len(paths))
	for i, path := range paths {
		if resolved[i] = f.resolve[path]; resolved[i] == "" {
			errs[i] = &fs.PathError{Op: "stat", Path: path, Err: fs.ErrNotExist}
		}
	}
	return resolved, errs
}

func (f fakeFiles) DeviceNode(path string) (specs.LinuxDevice, error) {
	if node, ok := f.nodes[path]; ok {
		return node, nil
	}
	return specs.LinuxDevice{}, &fs.PathError{Op: "stat", Path: path, Err: fs.ErrNotExist}
}

// Glob finds the files that can be resolved.
func (f fakeFiles) Glob(dir, pattern string, limit int) ([]string, error) {
	var found []string
	for path := range f.resolve {
		relative, below := strings.CutPrefix(path, dir+`\`)
		if below && winpath.MatchPath(pattern, relative) && len(found) < limit {
			found = append(found, relative)
		}
	}
	slices.Sort(found)
	return found, nil
}

const store = `C:\Windows\System32\DriverStore\FileRepository\nv.inf_amd64_1`

func t4(locationPath, driver string) discovery.Device {
	return discovery.Device{
		InstanceID: `PCI\VEN_10DE&DEV_1EB8\` + locationPath, LocationPath: locationPath,
		SupportsDisplay: true, SupportsCompute: true, DriverStorePath: driver,
		System32: []discovery.RuntimeFile{{Source: "nvcuda_loader64.dll", Destination: "nvcuda.dll"}, {Source: "nvapi64.dll", Destination: "nvapi64.dll"}},
		SysWOW64: []discovery.RuntimeFile{{Source: "nvcuda_loader32.dll", Destination: "nvcuda.dll"}},
	}
}

func onDisk(dirs ...string) fakeFiles {
	f := fakeFiles{resolve: map[string]string{}}
	for _, dir := range dirs {
		for _, name := range []string{"nvcuda_loader64.dll", "nvapi64.dll", "nvcuda_loader32.dll"} {
			f.resolve[dir+`\`+name] = dir + `\` + name
		}
	}
	return f
}

func ro(source, destination string) specs.Mount {
	return specs.Mount{Source: source, Destination: destination, Options: []string{"ro"}}
}

func TestBuildEditsWindows(t *testing.T) {
	t.Parallel()
	const other = `C:\Windows\System32\DriverStore\FileRepository\nv.inf_amd64_2`
	one := []specs.Mount{
		ro(store+`\nvcuda_loader64.dll`, `C:\Windows\System32\nvcuda.dll`),
		ro(store+`\nvapi64.dll`, `C:\Windows\System32\nvapi64.dll`),
		ro(store+`\nvcuda_loader32.dll`, `C:\Windows\SysWOW64\nvcuda.dll`),
	}
	escaping := t4("PCIROOT(0)#PCI(1B00)", store)
	escaping.System32 = append(escaping.System32,
		discovery.RuntimeFile{Source: `..\..\..\config\SAM`, Destination: "sam.dll"},
		discovery.RuntimeFile{Source: `nvapi64.dll`, Destination: `..\..\evil.dll`})
	linked := onDisk(store)
	linked.resolve[store+`\nvapi64.dll`] = `D:\real\nvapi64.dll`
	missing := onDisk(store)
	delete(missing.resolve, store+`\nvapi64.dll`)

	for name, test := range map[string]struct {
		devices []discovery.Device
		files   fakeFiles
		devs    []string
		mounts  []specs.Mount
		notes   []string
	}{
		"one GPU": {[]discovery.Device{t4("PCIROOT(0)#PCI(1B00)", store)}, onDisk(store), []string{"PCIROOT(0)#PCI(1B00)"}, one, nil},
		"two GPUs of one driver share its files": {
			[]discovery.Device{t4("PCIROOT(0)#PCI(1B00)", store), t4("PCIROOT(0)#PCI(1C00)", store)}, onDisk(store),
			[]string{"PCIROOT(0)#PCI(1B00)", "PCIROOT(0)#PCI(1C00)"}, one, nil,
		},
		"the first of two drivers wins": {
			[]discovery.Device{t4("PCIROOT(0)#PCI(1B00)", store), t4("PCIROOT(0)#PCI(1C00)", other)}, onDisk(store, other),
			[]string{"PCIROOT(0)#PCI(1B00)", "PCIROOT(0)#PCI(1C00)"}, one,
			[]string{"PCI(1C00): " + other + `\nvcuda_loader64.dll: C:\Windows\System32\nvcuda.dll is taken`, "nvapi64", "SysWOW64"},
		},
		"a file that is not on disk is left out": {
			[]discovery.Device{t4("PCIROOT(0)#PCI(1B00)", store)}, missing,
			[]string{"PCIROOT(0)#PCI(1B00)"}, []specs.Mount{one[0], one[2]}, []string{"does not exist"},
		},
		"a symbolic link is resolved": {
			[]discovery.Device{t4("PCIROOT(0)#PCI(1B00)", store)}, linked,
			[]string{"PCIROOT(0)#PCI(1B00)"}, []specs.Mount{one[0], ro(`D:\real\nvapi64.dll`, `C:\Windows\System32\nvapi64.dll`), one[2]}, nil,
		},
		"a path that leads out is left out": {
			[]discovery.Device{escaping}, onDisk(store),
			[]string{"PCIROOT(0)#PCI(1B00)"}, one, []string{"leads out", "leads out"},
		},
		"no GPU": {nil, onDisk(store), nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, notes, err := BuildEdits(Windows, test.devices, nil, test.files, Options{})
			if err != nil {
				t.Fatal(err)
			}
			var want Edits
			for _, d := range test.devs {
				want.WindowsDevices = append(want.WindowsDevices, specs.WindowsDevice{ID: d, IDType: "vpci-location-path"})
			}
			want.Mounts = test.mounts
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("edits (-want +got):\n%s", diff)
			}
			if len(notes) != len(test.notes) {
				t.Fatalf("notes %v, want %d", notes, len(test.notes))
			}
			for i, want := range test.notes {
				if !strings.Contains(notes[i].String(), want) {
					t.Errorf("note %q does not say %q", notes[i], want)
				}
			}
		})
	}
}

func mode(m os.FileMode) *os.FileMode { return &m }

func number(n uint32) *uint32 { return &n }

func dxg() discovery.Device {
	return discovery.Device{
		InstanceID: `VMBUS\{1}\0`, SupportsDisplay: true,
		DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg", ContainerPath: "/dev/dxg"}},
		Libraries:   []discovery.Library{{Source: "/usr/lib/wsl/lib/libd3d12.so", Destination: "/usr/lib/wsl/lib/libd3d12.so"}},
	}
}

func linuxFiles() fakeFiles {
	return fakeFiles{
		resolve: map[string]string{"/usr/lib/wsl/lib/libd3d12.so": "/usr/lib/wsl/lib/libd3d12.so"},
		nodes: map[string]specs.LinuxDevice{
			"/dev/dxg": {Path: "/dev/dxg", Type: "c", Major: 10, Minor: 125, FileMode: mode(0o666), UID: number(0), GID: number(44)},
		},
	}
}

func TestBuildEditsLinux(t *testing.T) {
	t.Parallel()
	got, notes, err := BuildEdits(Linux, []discovery.Device{dxg(), dxg()}, nil, linuxFiles(), Options{})
	if err != nil || len(notes) != 0 {
		t.Fatal(err, notes)
	}
	want := Edits{
		LinuxDevices: []specs.LinuxDevice{{Path: "/dev/dxg", Type: "c", Major: 10, Minor: 125, FileMode: mode(0o666), UID: number(0), GID: number(44)}},
		Mounts: []specs.Mount{{
			Source: "/usr/lib/wsl/lib/libd3d12.so", Destination: "/usr/lib/wsl/lib/libd3d12.so", Type: "bind",
			Options: []string{"rbind", "ro", "rprivate", "nosuid", "nodev"},
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("two devices behind one node (-want +got):\n%s", diff)
	}
}

func TestBuildEditsRefuses(t *testing.T) {
	t.Parallel()
	noPath := t4("", store)
	noNode := dxg()
	noNode.DeviceNodes = nil
	conflict := dxg()
	conflict.InstanceID = `VMBUS\{2}\0`
	conflict.DeviceNodes = append(conflict.DeviceNodes, discovery.DeviceNode{Path: "/dev/dxg1", ContainerPath: "/dev/dxg"})
	hidden := dxg()
	hidden.DeviceNodes[0] = discovery.DeviceNode{Path: "/dev/dxg1", ContainerPath: "/usr/lib/wsl/lib/libd3d12.so"}
	files := linuxFiles()
	files.nodes["/dev/dxg1"] = files.nodes["/dev/dxg"]
	for name, test := range map[string]struct {
		os      OS
		devices []discovery.Device
		files   fakeFiles
		want    error
	}{
		"Windows, no location path":      {Windows, []discovery.Device{noPath}, fakeFiles{}, ErrNotAssignable},
		"Linux, no device node":          {Linux, []discovery.Device{noNode}, fakeFiles{}, ErrNotAssignable},
		"Linux, node is gone":            {Linux, []discovery.Device{dxg()}, fakeFiles{}, fs.ErrNotExist},
		"Linux, two nodes at one place":  {Linux, []discovery.Device{dxg(), conflict}, files, ErrNotAssignable},
		"Linux, a library at the node's": {Linux, []discovery.Device{dxg(), hidden}, files, ErrNotAssignable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := BuildEdits(test.os, test.devices, nil, test.files, Options{})
			if last := test.devices[len(test.devices)-1]; !errors.Is(err, test.want) || !strings.Contains(err.Error(), last.InstanceID) {
				t.Errorf("error %v, want %v with the device's name", err, test.want)
			}
		})
	}
}

func editsFor(t testing.TB, os OS, devices []discovery.Device, files fakeFiles) Edits {
	t.Helper()
	edits, _, err := BuildEdits(os, devices, nil, files, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return edits
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
	windows := editsFor(t, Windows, []discovery.Device{t4("PCIROOT(0)#PCI(1B00)", store)}, onDisk(store))
	linux := editsFor(t, Linux, []discovery.Device{dxg()}, linuxFiles())
	env := Edits{Env: []string{"A=new"}}

	for name, test := range map[string]struct {
		edits    Edits
		in, want string
	}{
		"Windows": {
			windows,
			`{"ociVersion":"1.0.2","future":{"z":1,"a":12345678901234567890},"windows":{"layerFolders":["C:\\l"],"new":true}}`,
			`{"ociVersion":"1.0.2","future":{"z":1,"a":12345678901234567890},` +
				`"windows":{"layerFolders":["C:\\l"],"new":true,"devices":[{"id":"PCIROOT(0)#PCI(1B00)","idType":"vpci-location-path"}]},` +
				`"mounts":[{"destination":"C:\\Windows\\System32\\nvcuda.dll","source":"` + jsonPath(store) + `\\nvcuda_loader64.dll","options":["ro"]},` +
				`{"destination":"C:\\Windows\\System32\\nvapi64.dll","source":"` + jsonPath(store) + `\\nvapi64.dll","options":["ro"]},` +
				`{"destination":"C:\\Windows\\SysWOW64\\nvcuda.dll","source":"` + jsonPath(store) + `\\nvcuda_loader32.dll","options":["ro"]}]}`,
		},
		"Windows, the pod has a mount and a device of its own": {
			windows,
			`{"mounts":[{"destination":"c:/windows/system32/NVCUDA.DLL","source":"D:\\mine","x":1}],"windows":{"devices":[{"id":"pciroot(0)#pci(1b00)","idType":"vpci-location-path"}]},"annotations":{"a":"b<"}}`,
			`{"mounts":[{"destination":"c:/windows/system32/NVCUDA.DLL","source":"D:\\mine","x":1},` +
				`{"destination":"C:\\Windows\\System32\\nvapi64.dll","source":"` + jsonPath(store) + `\\nvapi64.dll","options":["ro"]},` +
				`{"destination":"C:\\Windows\\SysWOW64\\nvcuda.dll","source":"` + jsonPath(store) + `\\nvcuda_loader32.dll","options":["ro"]}],` +
				`"windows":{"devices":[{"id":"pciroot(0)#pci(1b00)","idType":"vpci-location-path"}]},"annotations":{"a":"b<"}}`,
		},
		"Linux": {
			linux,
			`{"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}],"pids":{"limit":1}},"seccomp":{"x":[]}},"mounts":null}`,
			`{"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":10,"minor":125,"access":"rw"}],"pids":{"limit":1}},"seccomp":{"x":[]},` +
				`"devices":[{"path":"/dev/dxg","type":"c","major":10,"minor":125,"fileMode":438,"uid":0,"gid":44}]},` +
				`"mounts":[{"destination":"/usr/lib/wsl/lib/libd3d12.so","type":"bind","source":"/usr/lib/wsl/lib/libd3d12.so","options":["rbind","ro","rprivate","nosuid","nodev"]}]}`,
		},
		"environment":       {env, `{"process":{"args":["x"],"env":["A=old","B=1"]}}`, `{"process":{"args":["x"],"env":["B=1","A=new"]}}`},
		"environment, none": {env, `{"process":{"env":null},"process2":1}`, `{"process":{"env":["A=new"]},"process2":1}`},
		"environment, as it was written": {
			env, "{\"process\":{ \"env\":[ \"B=\\u0031\" ,\n\"A2=x\", null, \"A\", \"C=\xff\" ]}}",
			"{\"process\":{\"env\":[\"B=\\u0031\",\"A2=x\",null,\"A\",\"C=\xff\",\"A=new\"]}}",
		},
		"environment, replaced": {
			env, `{"process":{"env":["A=1", "B=\u0031","\u0041=2",null , "A=3"]}}`, `{"process":{"env":["B=\u0031",null,"A=new"]}}`,
		},
		"environment, there already": {env, `{"process":{"env": ["A=1","\u0041=new" ]}}`, `{"process":{"env": ["A=1","\u0041=new" ]}}`},
		"environment, several": {
			Edits{Env: []string{"A=1", "B=<&>", "C=x", "A=2"}}, `{"process":{"env":["C=x","B="]}}`, `{"process":{"env":["C=x","B=<&>","A=2"]}}`,
		},
		"nothing": {Edits{}, `{ "a" : 1 }`, `{ "a" : 1 }`},
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
			`{"windows":{"new":{},"devices":[{"id":"interlock","idType":"other"},{"id":"PCI","idType":"vpci-location-path"}]}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := apply([]byte(test.in), test.edits)
			if err != nil {
				t.Fatal(err)
			}
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

// TestApplyAfterNRI applies edits to a spec that containerd has applied
// it to already. What NRI's generator writes of a device is given here by hand:
// AdjustDevices of nri v0.8 to v0.12, pkg/runtime-tools/generate.
func TestApplyAfterNRI(t *testing.T) {
	t.Parallel()
	edits := editsFor(t, Linux, []discovery.Device{dxg()}, linuxFiles())
	mounts, err := json.Marshal(edits.Mounts[:1])
	if err != nil {
		t.Fatal(err)
	}
	done := []byte(`{"linux":{"devices":[{"path":"/dev/dxg","type":"c","major":10,"minor":125,"fileMode":438,"uid":0,"gid":44}],` +
		`"resources":{"devices":[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":10,"minor":125,"access":"rw"}]}},` +
		`"mounts":` + string(mounts) + `}`)
	if got, err := apply(done, edits); err != nil || !bytes.Equal(got, done) {
		t.Errorf("%v\nNRI    %s\nthen us %s", err, done, got)
	}
}

func jsonPath(p string) string { return strings.ReplaceAll(p, `\`, `\\`) }

func TestApplyRefuses(t *testing.T) {
	t.Parallel()
	edits := editsFor(t, Windows, []discovery.Device{t4("PCIROOT(0)#PCI(1B00)", store)}, onDisk(store))
	edits.Env = []string{"A=B"}
	for _, spec := range []string{
		``, `null`, `[]`, `{`, `{} {}`, `{"mounts":{}}`, `{"mounts":[1]}`, `{"windows":[]}`, `{"windows":{"devices":{}}}`,
		`{"Windows":{}}`, `{"mounts":[],"mounts":[]}`,
		`{"mounts":[}`, `{"mounts":[{"destination":"/a"`, `{"mounts" []}`, `{"mounts":[] "a":1}`, `{"mounts":]}`, `{"a":"b`, `{"a":\"b}`, `{,}`,
		`{"process":[]}`, `{"process":{"env":{}}}`, `{"process":{"env":["A=B",1]}}`, `{"process":{"env":[],"Env":[]}}`,
	} {
		if got, err := apply([]byte(spec), edits); !errors.Is(err, ErrSpec) {
			t.Errorf("%s: %s, error %v, want ErrSpec", spec, got, err)
		}
	}
}

func TestDestinationKey(t *testing.T) {
	t.Parallel()
	const file = `C:\Windows\System32\nvcuda.dll`
	for destination, same := range map[string]bool{
		`c:/windows/SYSTEM32/nvcuda.dll`: true, `\Windows\System32\nvcuda.dll`: true, `/Windows/System32/nvcuda.dll`: true, `\\?\C:\Windows\System32\nvcuda.dll`: true,
		`D:\Windows\System32\nvcuda.dll`: false, `\\Windows\System32\nvcuda.dll`: false, `Windows\System32\nvcuda.dll`: false, `\\.\pipe\nvcuda.dll`: false,
	} {
		if got := DestinationKey(Windows, destination) == DestinationKey(Windows, file); got != same {
			t.Errorf("%s: %t", destination, got)
		}
	}
}

func TestParseOS(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{"windows": true, "linux": true, "Windows": false, "": false, "darwin": false} {
		if _, err := ParseOS(name); (err == nil) != ok {
			t.Errorf("ParseOS(%q): %v", name, err)
		}
	}
}

// environment reads a spec's environment as the runtimes do.
func environment(spec []byte) ([]string, error) {
	var typed struct{ Process struct{ Env []string } }
	err := json.Unmarshal(spec, &typed)
	return typed.Process.Env, err
}

func TestFactsEnvironment(t *testing.T) {
	t.Parallel()
	for _, env := range []string{
		`null`, `[]`, ` [ ]`, `["A=B"]`, `["A=B" , "C=\"D\"", "E=F"]`, "[\n\t\"A=]\",\"\\u0041=[\"\r\n]", `["Ü=ß","\ud800"]`, "[\"A=\xff\"]", `["A",null]`, `["\\"]`, `["",""]`,
	} {
		data := []byte(`{"process":{"env":` + env + `}}`)
		want, err := environment(data)
		if err != nil {
			t.Fatalf("%s: %v", env, err)
		}
		spec, err := ParseSpec(data)
		if err != nil {
			t.Fatalf("%s: %v", env, err)
		}
		facts, err := spec.Facts()
		if err != nil || !slices.Equal(facts.Env, want) {
			t.Errorf("%s: %q, %v, want %q", env, facts.Env, err, want)
		}
	}
	for _, env := range []string{`{}`, `"A=B"`, `["A",1]`, `[["A"]]`, `[{}]`, `1`} {
		spec, err := ParseSpec([]byte(`{"process":{"env":` + env + `}}`))
		if err != nil {
			t.Fatalf("%s: %v", env, err)
		}
		if facts, err := spec.Facts(); !errors.Is(err, ErrSpec) {
			t.Errorf("%s: %q, error %v, want ErrSpec", env, facts.Env, err)
		}
	}
}

func FuzzFacts(f *testing.F) {
	for _, env := range []string{`null`, `["A=B","C=D"]`, `["\"",1]`, `{"a":"]"}`, ` [ "A\\" , null ] `} {
		f.Add([]byte(`{"process":{"env":` + env + `},"annotations":{"a":"b"}}`))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, err := ParseSpec(data)
		if err != nil {
			return
		}
		facts, err := spec.Facts()
		if err != nil {
			return
		}
		// The runtimes refuse invalid JSON.
		if want, err := environment(data); json.Valid(data) && (err != nil || !slices.Equal(facts.Env, want)) {
			t.Errorf("%q, want %q, %v", facts.Env, want, err)
		}
	})
}

// FuzzApplyEnvironment adds two variables to an environment: the runtimes then read
// the others as before, followed by these.
func FuzzApplyEnvironment(f *testing.F) {
	for _, env := range []string{`null`, `["A=1","C=D","A=x"]`, `["\"",null]`, ` [ "A\\" , "\u0041=x","B=2" ] `, "[\"A=\xff\"]", `[]`} {
		f.Add([]byte(`{"process":{"cwd":"/","env":` + env + `}}`))
	}
	edits := Edits{Env: []string{"A=x", "B=y"}}
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, err := ParseSpec(data)
		if err != nil || !json.Valid(data) {
			return
		}
		if _, err := spec.Facts(); err != nil {
			return
		}
		before, err := environment(data)
		if err != nil {
			t.Fatal(err)
		}
		edited, changed, err := spec.Apply(edits)
		if err != nil {
			t.Fatal(err)
		}
		want := before
		for _, variable := range edits.Env {
			if !slices.Contains(before, variable) {
				want = append(slices.DeleteFunc(slices.Clone(want), func(v string) bool { return strings.HasPrefix(v, variable[:2]) }), variable)
			}
		}
		if got, err := environment(edited); err != nil || !slices.Equal(got, want) {
			t.Fatalf("%q, want %q, %v", got, want, err)
		}
		if changed == slices.Equal(before, want) {
			t.Fatalf("changed: %t\n%s", changed, edited)
		}
	})
}

func FuzzApply(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"mounts":null,"linux":null,"windows":null}`, `{"windows":{"devices":[{"id":"x","idType":"class"}]}}`,
		`{"linux":{"devices":[],"resources":{"devices":[{"allow":false,"access":"rwm"}]}},"mounts":[{"destination":"/x","source":"y"}]}`,
		`{"mounts":[{"destination":"/interlock"}],"windows":{"devices":[{"id":"interlock","idType":"ours"}]}}`, `{"mounts":[`, `{"a":"\\`,
		`{"\u006dounts":[],"MOUNTS":[]}`, `{"a":1e999,"b":"\ud800"}`,
	} {
		f.Add([]byte(seed))
	}
	windows := editsFor(f, Windows, []discovery.Device{t4("PCIROOT(0)#PCI(1B00)", store)}, onDisk(store))
	linux := editsFor(f, Linux, []discovery.Device{dxg()}, linuxFiles())
	f.Fuzz(func(t *testing.T, spec []byte) {
		removal := Edits{RemoveMounts: []string{"/interlock"}, RemoveWindowsDevices: []specs.WindowsDevice{{ID: "interlock", IDType: "ours"}}}
		for _, edits := range []Edits{windows, linux, removal, {}} {
			once, err := apply(spec, edits)
			if err != nil {
				if !errors.Is(err, ErrSpec) {
					t.Fatalf("error %v does not match ErrSpec", err)
				}
				continue
			}
			if !json.Valid(spec) {
				continue // The runtimes refuse it, edited or not.
			}
			twice, err := apply(once, edits)
			if err != nil || !bytes.Equal(once, twice) {
				t.Fatalf("applied twice: %v\nonce  %s\ntwice %s", err, once, twice)
			}
			var before, after map[string]json.RawMessage
			if err := json.Unmarshal(spec, &before); err != nil {
				t.Fatalf("accepted what is no JSON object: %v", err)
			}
			if err := json.Unmarshal(once, &after); err != nil {
				t.Fatalf("made invalid JSON: %v\n%s", err, once)
			}
			for key := range before {
				if _, ok := after[key]; !ok {
					t.Fatalf("%q was lost", key)
				}
			}
			var typed specs.Spec
			if json.Unmarshal(spec, &typed) == nil {
				if err := json.Unmarshal(once, &typed); err != nil {
					t.Fatalf("made a spec that the runtimes cannot read: %v", err)
				}
			}
		}
	})
}

func BenchmarkBuildEdits(b *testing.B) {
	devices := []discovery.Device{t4("PCIROOT(0)#PCI(1B00)", store), t4("PCIROOT(0)#PCI(1C00)", store)}
	files := onDisk(store)
	for b.Loop() {
		if _, _, err := BuildEdits(Windows, devices, nil, files, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkApply(b *testing.B) {
	edits := editsFor(b, Windows, []discovery.Device{t4("PCIROOT(0)#PCI(1B00)", store)}, onDisk(store))
	var mounts []string
	for i := range 30 {
		mounts = append(mounts, fmt.Sprintf(`{"destination":"C:\\m%d","source":"C:\\s%d"}`, i, i))
	}
	spec := []byte(`{"windows":{"layerFolders":["C:\\l"]},"mounts":[` + strings.Join(mounts, ",") + `]}`)
	for b.Loop() {
		if _, err := apply(spec, edits); err != nil {
			b.Fatal(err)
		}
	}
}
