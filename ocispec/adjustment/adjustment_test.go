package adjustment

import (
	"errors"
	"os"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"directx-nri/ocispec"
)

func TestNewLeavesTheContainersOwnMounts(t *testing.T) {
	t.Parallel()
	windows := ocispec.Edits{Mounts: []specs.Mount{
		{Destination: `C:\Windows\System32\nvcuda.dll`}, {Destination: `C:\Windows\System32\nvapi64.dll`}, {Destination: `C:\Windows\SysWOW64\nvcuda.dll`},
	}}
	linux := ocispec.Edits{Mounts: []specs.Mount{{Destination: "/usr/lib/wsl/lib/libd3d12.so"}}}
	for name, test := range map[string]struct {
		os       ocispec.OS
		edits    ocispec.Edits
		existing string
		want     int
	}{
		"Windows, no mount":              {ocispec.Windows, windows, `C:\data`, 3},
		"Windows, other case and slash":  {ocispec.Windows, windows, `c:/windows/SYSTEM32/NvCuda.dll`, 2},
		"Linux, no mount":                {ocispec.Linux, linux, "/data", 1},
		"Linux, the same written oddly":  {ocispec.Linux, linux, "/usr/lib/wsl//lib/../lib/libd3d12.so", 0},
		"Linux, case makes a difference": {ocispec.Linux, linux, "/usr/lib/WSL/lib/libd3d12.so", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := New(test.edits, test.os, []*api.Mount{{Destination: test.existing}})
			if got := len(a.GetMounts()); got != test.want {
				t.Errorf("%d mounts, want %d: %v", got, test.want, a.GetMounts())
			}
		})
	}
}

func TestDeviceNamesComeBack(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"PCIROOT(0)#PCI(1B00)", "PCIROOT(0)#PCI(0100)#PCI(0000)", "_", "a_b", `x\y=z`, "ü", "A-B.C"} {
		want := specs.WindowsDevice{ID: id, IDType: "vpci-location-path"}
		name := encodeDevice(want)
		if got, ok := decodeDevice(name); !ok || got != want {
			t.Errorf("%q travels as %q and comes back as %+v, %t", id, name, got, ok)
		}
	}
	class := specs.WindowsDevice{ID: ocispec.DisplayClass, IDType: ocispec.IDTypeClass}
	if got, ok := decodeDevice(encodeDevice(class)); !ok || got != class {
		t.Errorf("the class of GPUs comes back as %+v, %t", got, ok)
	}
	if got, want := encodeDevice(specs.WindowsDevice{ID: "PCIROOT(0)#PCI(1B00)", IDType: "vpci-location-path"}),
		"directx.microsoft.com/vpci-location-path=PCIROOT_280_29_23PCI_281B00_29"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for _, foreign := range []string{
		"", "nvidia.com/gpu=0", "directx.microsoft.com/vpci-location-path=", "directx.microsoft.com/vpci-location-path",
		"directx.microsoft.com/other=a", "directx.microsoft.com/vpci-location-path=a_2", "directx.microsoft.com/vpci-location-path=a_zz",
		"directx.microsoft.com/vpci-location-path=a(b", "directx.microsoft.com/vpci-location-path=a_41", "directx.microsoft.com/vpci-location-path=_2d",
	} {
		if d, ok := decodeDevice(foreign); ok {
			t.Errorf("%q is taken for the device %+v", foreign, d)
		}
	}
}

// TestThereAndBack carries all that edits can have over NRI and back.
func TestThereAndBack(t *testing.T) {
	t.Parallel()
	mode, group := os.FileMode(0o660), uint32(44)
	want := ocispec.Edits{
		Annotations:    map[string]string{"directx.microsoft.com/adjusted": "yes"},
		Env:            []string{"A=new", "B=with=sign", "C="},
		WindowsDevices: []specs.WindowsDevice{{ID: "PCIROOT(0)#PCI(1B00)", IDType: ocispec.IDTypeLocationPath}},
		LinuxDevices:   []specs.LinuxDevice{{Path: "/dev/dxg", Type: "c", Major: 10, Minor: 125, FileMode: &mode, GID: &group}},
		Mounts:         []specs.Mount{{Source: `D:\a`, Destination: `C:\b`, Options: []string{"ro"}}},
	}
	got, err := Edits(New(want, ocispec.Windows, nil))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what came back differs (-want +got):\n%s", diff)
	}
}

func TestEditsOfNothing(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]*api.ContainerAdjustment{
		"nil":   nil,
		"empty": {},
		// NRI's runtime side merges several answers into one of this form.
		"merged": {Hooks: &api.Hooks{}, Linux: &api.LinuxContainerAdjustment{Resources: &api.LinuxResources{Memory: &api.LinuxMemory{}}}},
	} {
		if got, err := Edits(a); err != nil || !cmp.Equal(got, ocispec.Edits{}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestEditsRefuses(t *testing.T) {
	t.Parallel()
	unsupported := map[string]func(*api.ContainerAdjustment){
		"hooks":              func(a *api.ContainerAdjustment) { a.AddHooks(&api.Hooks{Prestart: []*api.Hook{{Path: "/x"}}}) },
		"CDI device":         func(a *api.ContainerAdjustment) { a.AddCDIDevice(&api.CDIDevice{Name: "nvidia.com/gpu=0"}) },
		"OOM score of 0":     func(a *api.ContainerAdjustment) { zero := 0; a.SetLinuxOomScoreAdj(&zero) },
		"CPU shares":         func(a *api.ContainerAdjustment) { a.SetLinuxCPUShares(2) },
		"arguments":          func(a *api.ContainerAdjustment) { a.SetArgs([]string{"x"}) },
		"rlimit":             func(a *api.ContainerAdjustment) { a.AddRlimit("RLIMIT_NOFILE", 1, 1) },
		"cgroups path":       func(a *api.ContainerAdjustment) { a.SetLinuxCgroupsPath("/x") },
		"mount removal":      func(a *api.ContainerAdjustment) { a.RemoveMount("/x") },
		"device removal":     func(a *api.ContainerAdjustment) { a.RemoveDevice("/x") },
		"variable removal":   func(a *api.ContainerAdjustment) { a.RemoveEnv("X") },
		"annotation removal": func(a *api.ContainerAdjustment) { a.RemoveAnnotation("x") },
	}
	for name, change := range unsupported {
		a := &api.ContainerAdjustment{}
		change(a)
		if got, err := Edits(a); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %+v, error %v, want ErrUnsupported", name, got, err)
		}
	}
}
