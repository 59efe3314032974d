package ocispec

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/policy"
)

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
		rules    []policy.RuntimeFiles
		files    fakeFiles
		want     []discovery.RuntimeFile
		wow      []discovery.RuntimeFile
		notes    []string
		allMinor bool
	}{
		"none": {want: own},
		"added, under another name": {
			rules: []policy.RuntimeFiles{{Vendor: nvidia, Add: []policy.AddedFile{{Source: "vulkaninfo-x64.exe", Directory: "System32", Destination: "vulkaninfo.exe"}}}},
			files: driver("vulkaninfo-x64.exe"), want: append(slices.Clone(own), file("vulkaninfo-x64.exe", "vulkaninfo.exe")),
		},
		"added by a glob, in order": {
			rules: []policy.RuntimeFiles{{Vendor: nvidia, Add: []policy.AddedFile{{Source: `tools\*.exe`, Directory: "System32"}}}},
			files: driver(`tools\b.exe`, `tools\A.EXE`, `tools\deep\c.exe`), want: append(slices.Clone(own), file(`tools\A.EXE`, "A.EXE"), file(`tools\b.exe`, "b.exe")),
		},
		"for 32-bit programs": {
			rules: []policy.RuntimeFiles{{Vendor: nvidia, Add: []policy.AddedFile{{Source: "vulkaninfo-x86.exe", Directory: "SysWOW64"}}}},
			files: driver("vulkaninfo-x86.exe"), want: own, wow: []discovery.RuntimeFile{file("vulkaninfo-x86.exe", "vulkaninfo-x86.exe")},
		},
		"another vendor's": {
			rules: []policy.RuntimeFiles{{Vendor: 0x1002, Add: []policy.AddedFile{{Source: "amd.exe", Directory: "System32"}}, Remove: []string{"*"}}},
			files: driver("amd.exe"), want: own,
		},
		"not on disk is no matter": {
			rules: []policy.RuntimeFiles{{Vendor: nvidia, Add: []policy.AddedFile{{Source: "nvidia-smi.exe", Directory: "System32"}}}},
			want:  own, notes: []string{"no such file"}, allMinor: true,
		},
		"removed": {rules: []policy.RuntimeFiles{{Vendor: nvidia, Remove: []string{"NVAPI*.dll"}}}, want: own[:1]},
		"removed and added": {
			rules: []policy.RuntimeFiles{{Vendor: nvidia, Remove: []string{"nvapi64.dll"}, Add: []policy.AddedFile{{Source: "my.dll", Directory: "System32", Destination: "nvapi64.dll"}}}},
			files: driver("my.dll"), want: append(slices.Clone(own[:1]), file("my.dll", "nvapi64.dll")),
		},
		"what the driver lists wins": {
			rules: []policy.RuntimeFiles{{Vendor: nvidia, Add: []policy.AddedFile{{Source: "my.dll", Directory: "System32", Destination: "NVAPI64.DLL"}}}},
			files: driver("my.dll"), want: own, notes: []string{"that is already nvapi64.dll"},
		},
		"what the driver lists, again": {
			rules: []policy.RuntimeFiles{{Vendor: nvidia, Add: []policy.AddedFile{{Source: "nvapi64.dll", Directory: "System32"}}}}, want: own,
		},
		"a later entry removes an earlier one's": {
			rules: []policy.RuntimeFiles{
				{Vendor: nvidia, Add: []policy.AddedFile{{Source: "a.exe", Directory: "System32"}}},
				{Vendor: nvidia, Remove: []string{"a.*"}},
			},
			files: driver("a.exe"), want: own,
		},
		"out of the driver store": {
			rules: []policy.RuntimeFiles{{Vendor: nvidia, Add: []policy.AddedFile{{Source: `..\secret.txt`, Directory: "System32"}, {Source: `C:\secret.txt`, Directory: "System32"}}}},
			want:  own, notes: []string{"not below a driver store", "not below a driver store"},
		},
		"a name that cannot be": {
			rules: []policy.RuntimeFiles{{Vendor: nvidia, Add: []policy.AddedFile{{Source: "a.exe", Directory: "System32", Destination: `sub\a.exe`}}}},
			files: driver("a.exe"), want: own, notes: []string{"not allowed in System32"},
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
			got, notes := withRuntimeFiles(d, test.rules, files)
			if diff := cmp.Diff(test.want, got.System32); diff != "" {
				t.Errorf("System32 (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.wow, got.SysWOW64); diff != "" {
				t.Errorf("SysWOW64 (-want +got):\n%s", diff)
			}
			if len(notes) != len(test.notes) {
				t.Fatalf("notes %v, want %d", notes, len(test.notes))
			}
			for i, note := range notes {
				if !strings.Contains(note.Reason, test.notes[i]) || note.Minor != test.allMinor {
					t.Errorf("note %+v, want one that says %q", note, test.notes[i])
				}
			}
			if diff := cmp.Diff(own, d.System32); diff != "" {
				t.Errorf("the source's own list was changed:\n%s", diff)
			}
		})
	}
}

// TestDriverFiles checks which files driverFiles: none leaves.
func TestDriverFiles(t *testing.T) {
	t.Parallel()
	gpu := t4("PCIROOT(0)#PCI(1B00)", store)
	gpu.VendorID = discovery.VendorNVIDIA
	files := driver("nvidia-smi.exe", "vulkaninfo-x64.exe", "vulkaninfo-x86.exe", "tool.exe")
	p := policy.Default()
	p.RuntimeFiles = append(p.RuntimeFiles, policy.RuntimeFiles{Vendor: 0x10DE, Add: []policy.AddedFile{{Source: "tool.exe", Directory: policy.System32}}})
	for mode, want := range map[policy.DriverFiles]int{policy.FilesMount: 7, policy.FilesNone: 1} {
		p.DriverFiles = mode
		edits, notes, err := BuildEdits(Windows, []discovery.Device{gpu}, nil, files, p)
		if err != nil || len(notes) != 0 || len(edits.WindowsDevices) != 1 || len(edits.Mounts) != want ||
			!slices.ContainsFunc(edits.Mounts, func(m specs.Mount) bool { return m.Destination == System32+`\tool.exe` }) {
			t.Errorf("%s: %+v, notes %v, error %v; want %d files", mode, edits, notes, err, want)
		}
	}
	if len(p.RuntimeFiles) != 2 || len(gpu.System32) != 2 {
		t.Errorf("the policy or the device was changed: %+v, %+v", p.RuntimeFiles, gpu)
	}
}

func TestTooManyRuntimeFilesAreCut(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range maxAdded + 5 {
		names = append(names, fmt.Sprintf("f%03d.dll", i))
	}
	d := t4("PCIROOT(0)#PCI(1B00)", store)
	d.VendorID = discovery.VendorNVIDIA
	rule := policy.RuntimeFiles{Vendor: uint16(discovery.VendorNVIDIA), Add: []policy.AddedFile{{Source: "f*.dll", Directory: "System32"}}}
	got, notes := withRuntimeFiles(d, []policy.RuntimeFiles{rule}, driver(names...))
	if len(got.System32) != len(d.System32)+maxAdded || len(notes) != 1 || notes[0].Minor {
		t.Errorf("%d files, notes %v", len(got.System32), notes)
	}
}

const uuid0, uuid1 = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-11111111-2222-3333-4444-555555555555"

func TestHints(t *testing.T) {
	t.Parallel()
	gpu := func(vendor discovery.VendorID, uuid string) discovery.Device {
		return discovery.Device{InstanceID: uuid + vendor.String(), VendorID: vendor, UUID: uuid}
	}
	nvidia, other, amd, intel := gpu(discovery.VendorNVIDIA, uuid0), gpu(discovery.VendorNVIDIA, uuid1), gpu(discovery.VendorAMD, ""), gpu(discovery.VendorIntel, "")
	for name, test := range map[string]struct {
		os      OS
		devices []discovery.Device
		env     []string
		cuda    string
		hasNone bool // of our list
	}{
		"one":                          {devices: []discovery.Device{nvidia}, cuda: uuid0},
		"two, in their order":          {devices: []discovery.Device{other, nvidia}, cuda: uuid1 + "," + uuid0},
		"one of them is not known":     {devices: []discovery.Device{nvidia, gpu(discovery.VendorNVIDIA, "")}},
		"an index is no UUID":          {devices: []discovery.Device{gpu(discovery.VendorNVIDIA, "0")}},
		"not part of a UUID":           {devices: []discovery.Device{gpu(discovery.VendorNVIDIA, "GPU-8932f937")}},
		"nothing else in the list":     {devices: []discovery.Device{gpu(discovery.VendorNVIDIA, strings.Replace(uuid0, "-d72c-", ",0,--", 1))}},
		"with Intel's":                 {devices: []discovery.Device{intel, nvidia}, cuda: uuid0},
		"with AMD's, which reads it":   {devices: []discovery.Device{nvidia, amd}},
		"Intel's alone":                {devices: []discovery.Device{intel}},
		"the container's own":          {devices: []discovery.Device{nvidia}, env: []string{"CUDA_VISIBLE_DEVICES=1"}},
		"the container's own, none":    {devices: []discovery.Device{nvidia}, env: []string{"CUDA_VISIBLE_DEVICES="}},
		"the container's, in any case": {devices: []discovery.Device{nvidia}, env: []string{"cuda_Visible_devices=1", "Directx_Devices=x"}, hasNone: true},
		"another case on Linux":        {os: Linux, devices: []discovery.Device{nvidia}, env: []string{"cuda_visible_devices=1"}, cuda: uuid0},
		"begins alike":                 {devices: []discovery.Device{nvidia}, env: []string{"CUDA_VISIBLE_DEVICES_X=1"}, cuda: uuid0},
		"no GPU":                       {hasNone: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			os := test.os
			if os == "" {
				os = Windows
			}
			got, err := Hints(os, test.devices, test.env)
			if err != nil {
				t.Fatal(err)
			}
			var cuda string
			ours := false
			for _, variable := range got {
				name, value, _ := strings.Cut(variable, "=")
				switch name {
				case CUDAVariable:
					cuda = value
				case DevicesVariable:
					ours = true
				default:
					t.Errorf("unexpected %s", variable)
				}
			}
			if cuda != test.cuda || ours == test.hasNone {
				t.Errorf("%v, want %q", got, test.cuda)
			}
			if again, err := Hints(os, test.devices, append(got, test.env...)); err != nil || len(again) > 0 && test.cuda != "" {
				t.Errorf("again: %v, %v", again, err)
			}
		})
	}
}

func TestDevicesVariableHasTheFacts(t *testing.T) {
	t.Parallel()
	devices := []discovery.Device{
		{
			LocationPath: "PCIROOT(0)#PCI(1B00)", LUID: 0xC2F5, UUID: uuid0, Description: `NVIDIA "T4" <a>`,
			BusNumber: number(0x11B), Address: number(3<<16 | 1),
		},
		{InstanceID: "x"},
	}
	got, err := Hints(Windows, devices, nil)
	if err != nil || len(got) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	value, ok := strings.CutPrefix(got[0], "DIRECTX_DEVICES=")
	var list []map[string]any
	if err := json.Unmarshal([]byte(value), &list); err != nil || !ok {
		t.Fatalf("%s: %v", got[0], err)
	}
	want := []map[string]any{
		{
			"locationPath": "PCIROOT(0)#PCI(1B00)", "luid": "0x00000000_0x0000C2F5", "uuid": uuid0, "description": `NVIDIA "T4" <a>`,
			"segment": 1.0, "busNumber": 27.0, "device": 3.0, "function": 1.0,
		},
		{},
	}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
}
