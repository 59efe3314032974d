package gpuedits

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/winpath"
	"github.com/directx-nri/directx-nri/ocispec"
)

// fakeFiles maps paths to what they resolve to, and names device nodes.
type fakeFiles struct {
	resolve map[string]string
	nodes   map[string]specs.LinuxDevice
}

func (f fakeFiles) MountSource(path string) (string, error) {
	if final, ok := f.resolve[path]; ok {
		return final, nil
	}
	return "", &fs.PathError{Op: "stat", Path: path, Err: fs.ErrNotExist}
}

func (f fakeFiles) DeviceNode(path string) (specs.LinuxDevice, error) {
	if node, ok := f.nodes[path]; ok {
		return node, nil
	}
	return specs.LinuxDevice{}, &fs.PathError{Op: "stat", Path: path, Err: fs.ErrNotExist}
}

// Glob finds the files that can be resolved.
func (f fakeFiles) Glob(dir, pattern string) ([]string, error) {
	var found []string
	for path := range f.resolve {
		relative, below := strings.CutPrefix(path, dir+`\`)
		if below && winpath.MatchPath(pattern, relative) {
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

func TestBuildWindows(t *testing.T) {
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
	first, second, otherDriver := t4("PCIROOT(0)#PCI(1B00)", store), t4("PCIROOT(0)#PCI(1C00)", store), t4("PCIROOT(0)#PCI(1C00)", other)

	for name, test := range map[string]struct {
		devices []discovery.Device
		files   fakeFiles
		mounts  []specs.Mount
		skipped []string
	}{
		"one GPU":                                {[]discovery.Device{first}, onDisk(store), one, nil},
		"two GPUs of one driver share its files": {[]discovery.Device{first, second}, onDisk(store), one, nil},
		"the first of two drivers takes precedence": {
			[]discovery.Device{first, otherDriver}, onDisk(store, other), one,
			[]string{"PCI(1C00): " + other + `\nvcuda_loader64.dll: C:\Windows\System32\nvcuda.dll is already`, "nvapi64", "SysWOW64"},
		},
		"a file that is not on disk is left out": {[]discovery.Device{first}, missing, []specs.Mount{one[0], one[2]}, []string{"does not exist"}},
		"a symbolic link is resolved": {
			[]discovery.Device{first}, linked, []specs.Mount{one[0], ro(`D:\real\nvapi64.dll`, `C:\Windows\System32\nvapi64.dll`), one[2]}, nil,
		},
		"a path that leads out is left out": {[]discovery.Device{escaping}, onDisk(store), one, []string{"leads out", "leads out"}},
		"no GPU":                            {nil, onDisk(store), nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, skipped, err := Build("windows", test.devices, nil, test.files, policy.Resolved{})
			testutil.NoError(t, err)
			var want ocispec.Edits
			for _, d := range test.devices {
				want.WindowsDevices = append(want.WindowsDevices, specs.WindowsDevice{ID: d.LocationPath, IDType: "vpci-location-path"})
			}
			want.Mounts = test.mounts
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("edits (-want +got):\n%s", diff)
			}
			if len(skipped) != len(test.skipped) {
				t.Fatalf("skipped %v, want %d", skipped, len(test.skipped))
			}
			for i, want := range test.skipped {
				if !strings.Contains(skipped[i], want) {
					t.Errorf("file %q does not say %q", skipped[i], want)
				}
			}
		})
	}
}

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
			"/dev/dxg": {Path: "/dev/dxg", Type: "c", Major: 10, Minor: 125, FileMode: new(os.FileMode(0o666)), UID: new(uint32(0)), GID: new(uint32(44))},
		},
	}
}

func TestBuildLinux(t *testing.T) {
	t.Parallel()
	got, skipped, err := Build("linux", []discovery.Device{dxg(), dxg()}, nil, linuxFiles(), policy.Resolved{})
	if err != nil || len(skipped) != 0 {
		t.Fatal(err, skipped)
	}
	want := ocispec.Edits{
		LinuxDevices: []ocispec.LinuxDevice{{LinuxDevice: linuxFiles().nodes["/dev/dxg"], HostPath: "/dev/dxg"}},
		Mounts: []specs.Mount{{
			Source: "/usr/lib/wsl/lib/libd3d12.so", Destination: "/usr/lib/wsl/lib/libd3d12.so", Type: "bind",
			Options: []string{"bind", "ro", "rprivate", "nosuid", "nodev"},
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("two devices behind one node (-want +got):\n%s", diff)
	}
}

func TestLibraryPath(t *testing.T) {
	t.Parallel()
	wsl, opt := dxg(), dxg()
	wsl.LibraryPath, opt.LibraryPath = []string{"/usr/lib/wsl/lib"}, []string{"/opt/d3d", "/usr/lib/wsl/lib"}
	wsl.VendorID = pci.VendorAMD
	nv := wsl
	nv.VendorID = pci.VendorNVIDIA
	for name, test := range map[string]struct {
		devices   []discovery.Device
		env, want []string
	}{
		"new":      {[]discovery.Device{wsl}, []string{"A=b"}, []string{"LD_LIBRARY_PATH=/usr/lib/wsl/lib"}},
		"appended": {[]discovery.Device{wsl, opt}, []string{"LD_LIBRARY_PATH=/a:/b"}, []string{"LD_LIBRARY_PATH=/a:/b:/usr/lib/wsl/lib:/opt/d3d"}},
		"empty":    {[]discovery.Device{wsl}, []string{"LD_LIBRARY_PATH="}, []string{"LD_LIBRARY_PATH=/usr/lib/wsl/lib"}},
		"NVIDIA's first": {[]discovery.Device{opt, nv}, []string{"LD_LIBRARY_PATH=/usr/local/cuda/compat"},
			[]string{"LD_LIBRARY_PATH=/usr/lib/wsl/lib:/usr/local/cuda/compat:/opt/d3d"}},
		"NVIDIA's where it is": {[]discovery.Device{nv}, []string{"LD_LIBRARY_PATH=/a:/usr/lib/wsl/lib"}, nil},
		"already there":        {[]discovery.Device{wsl}, []string{"LD_LIBRARY_PATH=/usr/lib/wsl/lib:/b"}, nil},
		"last one":             {[]discovery.Device{wsl}, []string{"LD_LIBRARY_PATH=/a", "LD_LIBRARY_PATH=/b"}, []string{"LD_LIBRARY_PATH=/b:/usr/lib/wsl/lib"}},
		"none":                 {[]discovery.Device{dxg()}, []string{"LD_LIBRARY_PATH=/a"}, nil},
	} {
		got, _, err := Build("linux", test.devices, test.env, linuxFiles(), policy.Resolved{})
		if err != nil || !slices.Equal(got.Env, test.want) {
			t.Errorf("%s: %v, %v", name, got.Env, err)
		}
	}
	for variable, d := range map[string]discovery.Device{
		"MESA_D3D12_DEFAULT_ADAPTER_NAME=T4": {Description: "T4", LUID: 1},
		"HSA_ENABLE_DXG_DETECTION=1":         {VendorID: pci.VendorAMD, LUID: 1},
	} {
		name, _, _ := strings.Cut(variable, "=")
		for _, env := range [][]string{nil, {name + "=0"}} {
			d.DeviceNodes = wsl.DeviceNodes
			got, _, err := Build("linux", []discovery.Device{d}, env, linuxFiles(), policy.Resolved{Policy: policy.Policy{VisibilityHints: true}})
			if err != nil || slices.Contains(got.Env, variable) != (env == nil) || len(got.Env) != 2-len(env) {
				t.Errorf("%v with %v, %v", got.Env, env, err)
			}
		}
	}
}

func TestBuildRefuses(t *testing.T) {
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
		os      string
		devices []discovery.Device
		files   fakeFiles
		want    error
	}{
		"Windows, no location path":      {"windows", []discovery.Device{noPath}, fakeFiles{}, ErrNotAssignable},
		"Linux, no device node":          {"linux", []discovery.Device{noNode}, fakeFiles{}, ErrNotAssignable},
		"Linux, node is gone":            {"linux", []discovery.Device{dxg()}, fakeFiles{}, fs.ErrNotExist},
		"Linux, two nodes at one place":  {"linux", []discovery.Device{dxg(), conflict}, files, ErrNotAssignable},
		"Linux, a library at the node's": {"linux", []discovery.Device{dxg(), hidden}, files, ErrNotAssignable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := Build(test.os, test.devices, nil, test.files, policy.Resolved{})
			if last := test.devices[len(test.devices)-1]; !errors.Is(err, test.want) || !strings.Contains(err.Error(), last.InstanceID) {
				t.Errorf("error %v, want %v with the device's name", err, test.want)
			}
		})
	}
}

// driver has files that no driver lists.
func driver(names ...string) fakeFiles {
	f := onDisk(store)
	for _, name := range names {
		f.resolve[store+`\`+name] = store + `\` + name
	}
	return f
}

func TestRuntimeFilesOfTheConfiguration(t *testing.T) {
	t.Parallel()
	const nvidia = 0x10DE
	file := func(source, destination string) discovery.RuntimeFile {
		return discovery.RuntimeFile{Source: source, Destination: destination}
	}
	own := t4("", "").System32
	for name, test := range map[string]struct {
		changes   policy.RuntimeFiles
		files     fakeFiles
		want, wow []discovery.RuntimeFile
		skipped   []string
	}{
		"none": {want: own},
		"added by a glob, in order": {
			changes: policy.RuntimeFiles{Add: []policy.AddedFile{{Source: `tools\*.exe`, Directory: "System32"}}},
			files:   driver(`tools\b.exe`, `tools\A.EXE`, `tools\deep\c.exe`), want: append(slices.Clone(own), file(`tools\A.EXE`, "A.EXE"), file(`tools\b.exe`, "b.exe")),
		},
		"for 32-bit programs": {
			changes: policy.RuntimeFiles{Add: []policy.AddedFile{{Source: "vulkaninfo-x86.exe", Directory: "SysWOW64"}}},
			files:   driver("vulkaninfo-x86.exe"), want: own, wow: []discovery.RuntimeFile{file("vulkaninfo-x86.exe", "vulkaninfo-x86.exe")},
		},
		"not on disk is no matter": {
			changes: policy.RuntimeFiles{Add: []policy.AddedFile{{Source: "nvidia-smi.exe", Directory: "System32"}}},
			want:    own,
		},
		"removed": {changes: policy.RuntimeFiles{Remove: []string{"NVAPI*.dll"}}, want: own[:1]},
		"removed and added": {
			changes: policy.RuntimeFiles{Remove: []string{"nvapi64.dll"}, Add: []policy.AddedFile{{Source: "my.dll", Directory: "System32", Destination: "nvapi64.dll"}}},
			files:   driver("my.dll"), want: append(slices.Clone(own[:1]), file("my.dll", "nvapi64.dll")),
		},
		"what the driver lists takes precedence": {
			changes: policy.RuntimeFiles{Add: []policy.AddedFile{{Source: "my.dll", Directory: "System32", Destination: "NVAPI64.DLL"}}},
			files:   driver("my.dll"), want: own, skipped: []string{"NVAPI64.DLL is already nvapi64.dll"},
		},
		"what the driver lists, too": {
			changes: policy.RuntimeFiles{Add: []policy.AddedFile{{Source: "nvapi64.dll", Directory: "System32"}}}, want: own,
		},
		"out of the driver store": {
			changes: policy.RuntimeFiles{Add: []policy.AddedFile{{Source: `..\secret.txt`, Directory: "System32"}, {Source: `C:\secret.txt`, Directory: "System32"}}},
			want:    own, skipped: []string{"not below a driver store", "not below a driver store"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := t4("PCIROOT(0)#PCI(1B00)", store)
			d.VendorID, d.SysWOW64 = nvidia, nil
			files := test.files
			if files.resolve == nil {
				files = onDisk(store)
			}
			b := builder{files: files}
			got, skipped := b.withRuntimeFiles(d, test.changes), b.skipped
			if diff := cmp.Diff(test.want, got.System32); diff != "" {
				t.Errorf("System32 (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.wow, got.SysWOW64); diff != "" {
				t.Errorf("SysWOW64 (-want +got):\n%s", diff)
			}
			if len(skipped) != len(test.skipped) {
				t.Fatalf("skipped %v, want %d", skipped, len(test.skipped))
			}
			for i, file := range skipped {
				if !strings.Contains(file, test.skipped[i]) {
					t.Errorf("file %q, want one that says %q", file, test.skipped[i])
				}
			}
			if diff := cmp.Diff(own, d.System32); diff != "" {
				t.Errorf("the source's own list was changed:\n%s", diff)
			}
		})
	}
}

// TestDriverFiles checks which files driverFiles and the defaults of runtimeFiles leave.
func TestDriverFiles(t *testing.T) {
	t.Parallel()
	gpu := t4("PCIROOT(0)#PCI(1B00)", store)
	gpu.VendorID = pci.VendorNVIDIA
	files := driver("nvidia-smi.exe", "vulkaninfo-x64.exe", "vulkaninfo-x86.exe", "tool.exe")
	no := false
	add := []policy.AddedFile{{Source: "tool.exe", Directory: policy.System32}}
	for name, test := range map[string]struct {
		mode    policy.DriverFiles
		changes policy.RuntimeFiles
		want    int
	}{
		"all":                     {policy.FilesMount, policy.RuntimeFiles{Add: add}, 7},
		"a built-in file removed": {policy.FilesMount, policy.RuntimeFiles{Add: add, Remove: []string{"vulkaninfo-x*"}}, 5},
		"no built-in files":       {policy.FilesMount, policy.RuntimeFiles{Add: add, Defaults: &no}, 4},
		"only what is added":      {policy.FilesNone, policy.RuntimeFiles{Add: add}, 1},
	} {
		p := policy.Default()
		p.DriverFiles = test.mode
		p.RuntimeFiles = map[pci.Vendor]policy.RuntimeFiles{0: {Remove: []string{"*"}}, 0x1002: {Remove: []string{"*"}}, 0x10DE: test.changes}
		edits, skipped, err := Build("windows", []discovery.Device{gpu}, nil, files, policy.Resolved{Policy: p})
		if err != nil || len(skipped) != 0 || len(edits.WindowsDevices) != 1 || len(edits.Mounts) != test.want ||
			!slices.ContainsFunc(edits.Mounts, func(m specs.Mount) bool { return m.Destination == System32Dir+`\tool.exe` }) {
			t.Errorf("%s: %+v, skipped %v, error %v; want %d files", name, edits, skipped, err, test.want)
		}
	}
}
