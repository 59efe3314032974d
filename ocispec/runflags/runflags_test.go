package runflags

import (
	"encoding/csv"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/ocispec"
)

// files are those of a node: what is named with "" is not there, what is not
// named is a file or a character device.
type files map[string]string

func (f files) ResolveAll(paths []string) (resolved []string, errs []error) {
	for _, path := range paths {
		target, err := f.resolve(path)
		resolved, errs = append(resolved, target), append(errs, err)
	}
	return resolved, errs
}

func (f files) resolve(path string) (string, error) {
	switch target, ok := f[path]; {
	case !ok:
		return path, nil
	case target == "":
		return "", &fs.PathError{Op: "stat", Path: path, Err: fs.ErrNotExist}
	default:
		return target, nil
	}
}

func (files) Glob(string, string, int) ([]string, error) { return nil, nil }

func (files) DeviceNode(path string) (specs.LinuxDevice, error) {
	if strings.Contains(path, "block") {
		return specs.LinuxDevice{Path: path, Type: "b", Major: 7}, nil
	}
	return specs.LinuxDevice{Path: path, Type: "c", Major: 61}, nil
}

const store = `C:\Windows\System32\DriverStore\FileRepository\nv_dispi.inf_amd64_1`

func windowsGPU(location string, names ...string) discovery.Device {
	d := discovery.Device{InstanceID: `PCI\VEN_10DE&DEV_1EB8\` + location, LocationPath: location, DriverStorePath: store, SupportsDisplay: true}
	for _, name := range names {
		d.System32 = append(d.System32, discovery.RuntimeFile{Source: name, Destination: name})
	}
	return d
}

func linuxGPU(node, inside string, libraries ...string) discovery.Device {
	d := discovery.Device{InstanceID: node, SupportsDisplay: true, DeviceNodes: []discovery.DeviceNode{{Path: node, ContainerPath: inside}}}
	for _, l := range libraries {
		d.Libraries = append(d.Libraries, discovery.Library{Source: l, Destination: "/usr/lib" + l})
	}
	return d
}

const location = "PCIROOT(0)#PCI(1B00)"

// flagsOf returns the flags of the edits that give devices.
func flagsOf(program Program, os ocispec.OS, devices []discovery.Device, files ocispec.Files, options ocispec.Options) ([]string, []ocispec.Note, error) {
	edits, notes, err := ocispec.BuildEdits(os, devices, nil, files, options)
	if err != nil {
		return nil, nil, err
	}
	flags, err := Flags(program, os, edits, files)
	return flags, notes, err
}

func TestFlags(t *testing.T) {
	t.Parallel()
	const inside = `C:\Windows\System32\`
	for name, test := range map[string]struct {
		os           ocispec.OS
		devices      []discovery.Device
		ctr, nerdctl []string
	}{
		"a GPU of Windows": {
			ocispec.Windows, []discovery.Device{windowsGPU(location, "nvcuda.dll")},
			[]string{"--device", "vpci-location-path://" + location, "--mount", "src=" + store + `\nvcuda.dll,dst=` + inside + `nvcuda.dll,options=ro`},
			[]string{"--device", "vpci-location-path://" + location, "--volume", store + `\nvcuda.dll:` + inside + `nvcuda.dll:ro`},
		},
		"two GPUs of Windows": {
			ocispec.Windows, []discovery.Device{windowsGPU(location), windowsGPU("PCIROOT(0)#PCI(1C00)")},
			[]string{"--device", "vpci-location-path://" + location, "--device", "vpci-location-path://PCIROOT(0)#PCI(1C00)"},
			[]string{"--device", "vpci-location-path://" + location, "--device", "vpci-location-path://PCIROOT(0)#PCI(1C00)"},
		},
		"commas": {
			ocispec.Windows, []discovery.Device{windowsGPU("A,B", `x,y.dll`)},
			[]string{"--device", "vpci-location-path://A,B", "--mount", `"src=` + store + `\x,y.dll","dst=` + inside + `x,y.dll",options=ro`},
			[]string{"--device", `"vpci-location-path://A,B"`, "--volume", store + `\x,y.dll:` + inside + `x,y.dll:ro`},
		},
		"a GPU of Linux": {
			ocispec.Linux, []discovery.Device{linuxGPU("/dev/dxg", "/dev/dxg", "/lib/libd3d12.so")},
			[]string{"--device", "/dev/dxg", "--mount", "type=bind,src=/lib/libd3d12.so,dst=/usr/lib/lib/libd3d12.so,options=bind:ro:rprivate:nosuid:nodev"},
			[]string{"--device", "/dev/dxg:rw", "--mount", "type=bind,src=/lib/libd3d12.so,dst=/usr/lib/lib/libd3d12.so,ro,bind-propagation=rprivate"},
		},
		"a block device": {
			ocispec.Linux, []discovery.Device{linuxGPU("/dev/block", "/dev/block")},
			[]string{"--device", "/dev/block"}, []string{"--device", "/dev/block:rwm"},
		},
		"no GPU": {ocispec.Linux, nil, nil, nil},
	} {
		for program, want := range map[Program][]string{Ctr: test.ctr, Nerdctl: test.nerdctl} {
			got, notes, err := flagsOf(program, test.os, test.devices, files{}, ocispec.Options{})
			if err != nil || len(notes) > 0 {
				t.Errorf("%s, %s: %v %v", name, program, notes, err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", name, program, diff)
			}
		}
	}
}

func TestMissingFilesAreReported(t *testing.T) {
	t.Parallel()
	missing := files{store + `\nvcuda.dll`: ""}
	flags, notes, err := flagsOf(Ctr, ocispec.Windows, []discovery.Device{windowsGPU(location, "nvcuda.dll")}, missing, ocispec.Options{})
	if err != nil || len(flags) != 2 || len(notes) != 1 || notes[0].Source != store+`\nvcuda.dll` {
		t.Errorf("%q, %v, %v", flags, notes, err)
	}
}

func TestWhatHasNoFlag(t *testing.T) {
	t.Parallel()
	both := []Program{Ctr, Nerdctl}
	shared := windowsGPU(location, "a.dll")
	shared.DriverStorePath = `\\server\share`
	for name, test := range map[string]struct {
		programs []Program
		os       ocispec.OS
		device   discovery.Device
		says     string
	}{
		"another path inside":       {both, ocispec.Linux, linuxGPU("/dev/npu0", "/dev/npu"), "device node /dev/npu0 must be /dev/npu"},
		"a link":                    {both, ocispec.Linux, linuxGPU("/dev/link", "/dev/link"), "/dev/link is a symbolic link to device node /dev/real"},
		"a node with a colon":       {[]Program{Nerdctl}, ocispec.Linux, linuxGPU("/dev/by-path/pci-0:1", "/dev/by-path/pci-0:1"), "colon"},
		"a library with a comma":    {[]Program{Nerdctl}, ocispec.Linux, linuxGPU("/dev/a", "/dev/a", "/x,y.so"), "comma"},
		"a library with a colon":    {[]Program{Nerdctl}, ocispec.Linux, linuxGPU("/dev/a", "/dev/a", "/x:y.so"), "colon"},
		"no dir of a drive":         {[]Program{Nerdctl}, ocispec.Windows, shared, `\\server\share\a.dll`},
		"a control character":       {both, ocispec.Linux, linuxGPU("/dev/a", "/dev/a", "/x\ny.so"), `"`},
		"a control character again": {both, ocispec.Windows, windowsGPU("PCI\n"), `"`},
	} {
		for _, program := range test.programs {
			flags, _, err := flagsOf(program, test.os, []discovery.Device{test.device}, files{"/dev/link": "/dev/real"}, ocispec.Options{})
			if !errors.Is(err, ErrNoFlag) || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "\n") || flags != nil {
				t.Errorf("%s, %s: %q, %v", name, program, flags, err)
			}
		}
	}
	// The shim could not do this either.
	if _, _, err := flagsOf(Ctr, ocispec.Windows, []discovery.Device{windowsGPU("")}, files{}, ocispec.Options{}); !errors.Is(err, ocispec.ErrNotAssignable) || errors.Is(err, ErrNoFlag) {
		t.Errorf("no location path: %v", err)
	}
}

// FuzzMounts reads flags as the programs do: what could not be read back as it
// was is refused.
func FuzzMounts(f *testing.F) {
	for _, name := range []string{"nvcuda.dll", "a,b", `a"b`, " a", "a=b", "a:b", `a\b`, "ä", "\r", "a\n", ""} {
		f.Add(name, name)
	}
	f.Fuzz(func(t *testing.T, source, destination string) {
		value := func(program Program, os ocispec.OS, m specs.Mount) (string, bool) {
			flags, err := Flags(program, os, ocispec.Edits{Mounts: []specs.Mount{m}}, files{})
			if err != nil {
				return "", false
			}
			return flags[1], true
		}
		m := specs.Mount{Type: "bind", Source: "/" + source, Destination: "/" + destination, Options: []string{"rbind", "ro"}}
		if value, ok := value(Ctr, ocispec.Linux, m); ok {
			if diff := cmp.Diff(m, readCtrMount(t, value)); diff != "" {
				t.Errorf("ctr: %s (-want +got):\n%s", value, diff)
			}
		}
		if value, ok := value(Nerdctl, ocispec.Linux, m); ok {
			fields := strings.Split(value, ",")
			if len(fields) != 5 || fields[1] != "src="+m.Source || fields[2] != "dst="+m.Destination || strings.Count(value, ":") > 0 {
				t.Errorf("nerdctl: %s", value)
			}
		}
		m = specs.Mount{Source: `C:\` + source, Destination: `C:\` + destination}
		if value, ok := value(Nerdctl, ocispec.Windows, m); ok {
			if want := m.Source + ":" + m.Destination + ":ro"; value != want || strings.Count(value, ":") != 4 {
				t.Errorf("nerdctl: %s", value)
			}
		}
	})
}

func readCtrMount(t *testing.T, value string) (m specs.Mount) {
	t.Helper()
	fields, err := csv.NewReader(strings.NewReader(value)).Read()
	if err != nil {
		t.Errorf("%s: %v", value, err)
	}
	for _, field := range fields {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "type":
			m.Type = value
		case "src":
			m.Source = value
		case "dst":
			m.Destination = value
		case "options":
			m.Options = strings.Split(value, ":")
		default:
			t.Errorf("unknown %s", field)
		}
	}
	return m
}

// A standalone container gets the extra files of the policy and the visibility hints.
func TestFlagsByThePolicy(t *testing.T) {
	t.Parallel()
	gpu := windowsGPU("PCIROOT(0)#PCI(1B00)", "nvcuda.dll")
	for _, program := range []Program{Ctr, Nerdctl} {
		flags, _, err := flagsOf(program, ocispec.Windows, []discovery.Device{gpu}, files{}, ocispec.Options{ByClass: true, VisibilityHints: true})
		text := strings.Join(flags, "\n")
		if err != nil || !strings.Contains(text, "5B45201D-F2F2-4F3B-85BB-30FF1F953599") || strings.Contains(text, "--device\nvpci") || !strings.Contains(text, "--env\nDIRECTX_DEVICES=[{") {
			t.Errorf("%s: %v\n%s", program, err, text)
		}
		without, there := WithoutVariable(flags, ocispec.DevicesVariable)
		if !there || len(without) != len(flags)-2 || strings.Contains(strings.Join(without, "\n"), "--env") {
			t.Errorf("%s: %q", program, without)
		}
		if again, there := WithoutVariable(without, ocispec.DevicesVariable); there || len(again) != len(without) {
			t.Errorf("%s: %q", program, again)
		}
	}
}
