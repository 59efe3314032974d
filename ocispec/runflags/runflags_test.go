package runflags

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/ocispec"
)

// resolve follows the symbolic link of a node.
func resolve(path string) (final string, regular bool, err error) {
	if path == "/dev/link" {
		path = "/dev/real"
	}
	return path, false, nil
}

const (
	location = "PCIROOT(0)#PCI(1B00)"
	store    = `C:\Windows\System32\DriverStore\FileRepository\nv_dispi.inf_amd64_1\`
	system32 = `C:\Windows\System32\`
)

// windowsEdits give a GPU with a file.
func windowsEdits(location, source, destination string) ocispec.Edits {
	return ocispec.Edits{
		WindowsDevices: []specs.WindowsDevice{{IDType: ocispec.IDTypeLocationPath, ID: location}},
		Mounts:         []specs.Mount{ocispec.ReadOnlyMount("windows", source, destination)},
	}
}

// linuxEdits give a device node with a library.
func linuxEdits(host, inside, kind, library string) ocispec.Edits {
	return ocispec.Edits{
		LinuxDevices: []ocispec.LinuxDevice{{LinuxDevice: specs.LinuxDevice{Path: inside, Type: kind}, HostPath: host}},
		Mounts:       []specs.Mount{ocispec.ReadOnlyMount("linux", library, "/usr/lib"+library)},
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		os           string
		edits        ocispec.Edits
		ctr, nerdctl []string
	}{
		"Windows": {
			"windows", windowsEdits(location, store+"nvcuda.dll", system32+"nvcuda.dll"),
			[]string{"--device", "vpci-location-path://" + location, "--mount", "src=" + store + "nvcuda.dll,dst=" + system32 + "nvcuda.dll,options=ro"},
			[]string{"--device", "vpci-location-path://" + location, "--volume", store + "nvcuda.dll:" + system32 + "nvcuda.dll:ro"},
		},
		"commas": {
			"windows", windowsEdits("A,B", store+"x,y.dll", system32+"x,y.dll"),
			[]string{"--device", "vpci-location-path://A,B", "--mount", `"src=` + store + `x,y.dll","dst=` + system32 + `x,y.dll",options=ro`},
			[]string{"--device", `"vpci-location-path://A,B"`, "--volume", store + "x,y.dll:" + system32 + "x,y.dll:ro"},
		},
		"Linux": {
			"linux", linuxEdits("/dev/dxg", "/dev/dxg", "c", "/lib/libd3d12.so"),
			[]string{"--device", "/dev/dxg", "--mount", "type=bind,src=/lib/libd3d12.so,dst=/usr/lib/lib/libd3d12.so,options=bind:ro:rprivate:nosuid:nodev"},
			[]string{"--device", "/dev/dxg:rw", "--mount", "type=bind,src=/lib/libd3d12.so,dst=/usr/lib/lib/libd3d12.so,ro,bind-propagation=rprivate"},
		},
		"a block device": {
			"linux", ocispec.Edits{LinuxDevices: linuxEdits("/dev/block", "/dev/block", "b", "").LinuxDevices},
			[]string{"--device", "/dev/block"}, []string{"--device", "/dev/block:rwm"},
		},
		"environment": {"linux", ocispec.Edits{Env: []string{"A=b"}}, []string{"--env", "A=b"}, []string{"--env", "A=b"}},
		"nothing":     {"linux", ocispec.Edits{}, nil, nil},
	} {
		for program, want := range map[string][]string{Ctr: test.ctr, Nerdctl: test.nerdctl} {
			if got, err := Flags(program, test.os, test.edits, resolve); err != nil || !slices.Equal(got, want) {
				t.Errorf("%s, %s: %q, %v, want %q", name, program, got, err, want)
			}
		}
	}
}

func TestWhatHasNoFlag(t *testing.T) {
	t.Parallel()
	both, nerdctl := []string{Ctr, Nerdctl}, []string{Nerdctl}
	for name, test := range map[string]struct {
		programs []string
		os       string
		edits    ocispec.Edits
		says     string
	}{
		"another path inside":       {both, "linux", linuxEdits("/dev/npu0", "/dev/npu", "c", "/a"), "device node /dev/npu0 must be /dev/npu"},
		"a link":                    {both, "linux", linuxEdits("/dev/link", "/dev/link", "c", "/a"), "/dev/link is a symbolic link to device node /dev/real"},
		"a node with a colon":       {nerdctl, "linux", linuxEdits("/dev/pci-0:1", "/dev/pci-0:1", "c", "/a"), "colon"},
		"a library with a comma":    {nerdctl, "linux", linuxEdits("/dev/a", "/dev/a", "c", "/x,y.so"), "comma"},
		"a library with a colon":    {nerdctl, "linux", linuxEdits("/dev/a", "/dev/a", "c", "/x:y.so"), "colon"},
		"a library with a quote":    {nerdctl, "linux", linuxEdits("/dev/a", "/dev/a", "c", `/x"y.so`), "quotation mark"},
		"no directory of a drive":   {nerdctl, "windows", windowsEdits(location, `\\server\share\a.dll`, system32+"a.dll"), `\\server\share\a.dll`},
		"a file with a colon":       {nerdctl, "windows", windowsEdits(location, store+"a:b.dll", system32+"a.dll"), "a:b.dll"},
		"a control character":       {both, "linux", linuxEdits("/dev/a", "/dev/a", "c", "/x\ny.so"), `"`},
		"a control character again": {both, "windows", windowsEdits("PCI\n", store+"a.dll", system32+"a.dll"), `"`},
	} {
		for _, program := range test.programs {
			flags, err := Flags(program, test.os, test.edits, resolve)
			testutil.CheckError(t, name, err, test.says)
			if !errors.Is(err, ErrNoFlag) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s, %s: error %q, want %v in one line", name, program, err, ErrNoFlag)
			}
			if flags != nil {
				t.Errorf("%s, %s: %q", name, program, flags)
			}
		}
	}
}
