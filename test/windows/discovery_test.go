//go:build e2e && linux

package windows

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"directx-nri/discovery"
	"directx-nri/test/windows/bed"
	"directx-nri/test/windows/hardware"
)

// TestDiscovery changes the hardware, which the prefix has one of, and looks at
// what the product's discovery makes of it. So its parts run one after the other.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	if skip != "" {
		t.Skip(skip)
	}
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"1 a node with four Tesla T4", testFourT4},
		{"2 what each device is for", testKinds},
		{"3 what the driver lists", testRuntimeFiles},
		{"4 changes are told", testChanges},
		{"5 many devices and rounds", testRounds},
		{"6 without DXCore", testWithoutDXCore},
		{"7 containers", testLive},
		{"8 UUIDs", testUUIDs},
		{"what dxctl tells", testTold},
		{"single devices or the class", testAssignment},
		{"example programs", testExamples},
		{"unit tests", testUnits},
	} {
		t.Run(part.name, part.run)
	}
}

// pointer returns a pointer to v.
func pointer[T any](v T) *T { return &v }

// t4Store is the driver's folder on a g4dn instance of AWS.
const t4Store = bed.DriverStore + `\nvgridsw_aws.inf_amd64_1b50ef32b191cff1`

// t4Memory is in bytes.
const t4Memory = 15 << 30

// t4 returns the i-th of at most four Tesla T4 of a g4dn instance, as Windows
// and DXCore know it.
func t4(i int) (hardware.Device, hardware.Adapter) {
	luid := []uint64{7048070, 7098126, 7148182, 7198238}[i]
	slot := uint32(0x1b + i)
	device := hardware.Device{
		InstanceID:   fmt.Sprintf(`PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\3&13C0B0C5&1&%X`, slot<<3),
		Class:        hardware.ClassDisplay,
		Description:  "NVIDIA Tesla T4",
		Manufacturer: "NVIDIA",
		HardwareIDs:  []string{`PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1`, `PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE`},
		LocationPaths: []string{
			fmt.Sprintf("PCIROOT(0)#PCI(%X00)", slot),
			fmt.Sprintf("ACPI(_SB_)#ACPI(PCI0)#ACPI(S%X_)", slot<<3),
		},
		LUID:      &luid,
		NUMANode:  pointer[uint32](0),
		BusNumber: pointer[uint32](0),
		Address:   pointer(slot << 16),
		Status:    hardware.Running,
		Driver:    nvidia(t4Store, "31.0.15.5222"),
	}
	adapter := hardware.Adapter{
		LUID: luid, Description: "NVIDIA Tesla T4", Hardware: true, DedicatedMemory: t4Memory,
		D3D11Graphics: true, D3D12Graphics: true, D3D12CoreCompute: true,
	}
	return device, adapter
}

// nvidia returns a driver of NVIDIA's, by what it lists.
func nvidia(store, version string) *hardware.Driver {
	user := func(file string) []string { return slices.Repeat([]string{store + `\` + file}, 4) }
	d := &hardware.Driver{Version: version, INF: "oem12.inf", Values: []hardware.Value{
		hardware.Strings("", "UserModeDriverName", user("nvldumdx.dll")...),
		hardware.Strings("", "UserModeDriverNameWow", user("nvldumd.dll")...),
		hardware.String("", "DriverDesc", "NVIDIA Tesla T4"),
	}}
	for _, list := range []struct {
		subkey string
		files  [][]string
	}{
		{"CopyToVmOverwrite", [][]string{
			{"nvcudadebugger.dll"}, {"nvcuda_loader64.dll", "nvcuda.dll"}, {"nvcuvid64.dll", "nvcuvid.dll"},
			{"nvEncodeAPI64.dll"}, {"nvapi64.dll"}, {"nvml_loader.dll", "nvml.dll"},
		}},
		{"CopyToVmWhenNewer", [][]string{{"OpenCL64.dll", "OpenCL.dll"}, {"vulkan-1-x64.dll", "vulkan-1.dll"}}},
		{"CopyToVmOverwriteWow64", [][]string{
			{"nvcuda_loader32.dll", "nvcuda.dll"}, {"nvcuvid32.dll", "nvcuvid.dll"}, {"nvEncodeAPI.dll"}, {"nvapi.dll"},
		}},
		{"CopyToVmWhenNewerWow64", [][]string{{"OpenCL32.dll", "OpenCL.dll"}, {"vulkan-1-x86.dll", "vulkan-1.dll"}}},
	} {
		for i, file := range list.files {
			d.Values = append(d.Values, hardware.Strings(list.subkey, fmt.Sprintf("File%02d", i), file...))
		}
	}
	return d
}

// plugT4 plugs that many Tesla T4 and returns what they are.
func plugT4(t *testing.T, n int) bed.Hardware {
	t.Helper()
	var h bed.Hardware
	for i := range n {
		device, adapter := t4(i)
		h.Devices, h.Adapters = append(h.Devices, device), append(h.Adapters, adapter)
	}
	wine.Plug(t, h)
	return h
}

// byID returns devices by their instance IDs, without what differs from one run
// to the next, or is told of every device under Wine: the driver key's number,
// and that there is no SetupGetInfDriverStoreLocation.
func byID(t *testing.T, devices []discovery.Device) map[string]discovery.Device {
	t.Helper()
	found := map[string]discovery.Device{}
	for _, d := range devices {
		if _, twice := found[d.InstanceID]; twice {
			t.Errorf("%s is listed twice", d.InstanceID)
		}
		if class, number, _ := strings.Cut(d.DriverKey, `\`); d.DriverKey != "" && (len(class) != len(hardware.ClassDisplay) || len(number) != 4) {
			t.Errorf("%s has the driver key %q", d.InstanceID, d.DriverKey)
		}
		d.DriverKey = ""
		d.Notes = slices.DeleteFunc(d.Notes, func(note string) bool { return strings.Contains(note, "directory in the driver store is unknown") })
		if len(d.Notes) == 0 {
			d.Notes = nil
		}
		found[d.InstanceID] = d
	}
	return found
}

func testFourT4(t *testing.T) {
	plugT4(t, 4)
	want := map[string]discovery.Device{}
	var order []string
	for i := range 4 {
		slot := uint32(0x1b + i)
		id := []string{
			`PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\3&13C0B0C5&1&D8`,
			`PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\3&13C0B0C5&1&E0`,
			`PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\3&13C0B0C5&1&E8`,
			`PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\3&13C0B0C5&1&F0`,
		}[i]
		order = append(order, id)
		want[id] = discovery.Device{
			InstanceID:      id,
			Description:     "NVIDIA Tesla T4",
			VendorID:        discovery.VendorNVIDIA,
			Manufacturer:    "NVIDIA",
			LocationPath:    []string{"PCIROOT(0)#PCI(1B00)", "PCIROOT(0)#PCI(1C00)", "PCIROOT(0)#PCI(1D00)", "PCIROOT(0)#PCI(1E00)"}[i],
			LUID:            []discovery.LUID{7048070, 7098126, 7148182, 7198238}[i],
			DriverVersion:   "31.0.15.5222",
			DriverStorePath: t4Store,
			DedicatedMemory: t4Memory,
			NUMANode:        pointer(0),
			BusNumber:       pointer[uint32](0),
			Address:         pointer(slot << 16),
			Status:          hardware.Running,
			SupportsDisplay: true,
			SupportsCompute: true,
			System32: []discovery.RuntimeFile{
				{Source: "nvcudadebugger.dll", Destination: "nvcudadebugger.dll"},
				{Source: "nvcuda_loader64.dll", Destination: "nvcuda.dll"},
				{Source: "nvcuvid64.dll", Destination: "nvcuvid.dll"},
				{Source: "nvEncodeAPI64.dll", Destination: "nvEncodeAPI64.dll"},
				{Source: "nvapi64.dll", Destination: "nvapi64.dll"},
				{Source: "nvml_loader.dll", Destination: "nvml.dll"},
				{Source: "OpenCL64.dll", Destination: "OpenCL.dll"},
				{Source: "vulkan-1-x64.dll", Destination: "vulkan-1.dll"},
			},
			SysWOW64: []discovery.RuntimeFile{
				{Source: "nvcuda_loader32.dll", Destination: "nvcuda.dll"},
				{Source: "nvcuvid32.dll", Destination: "nvcuvid.dll"},
				{Source: "nvEncodeAPI.dll", Destination: "nvEncodeAPI.dll"},
				{Source: "nvapi.dll", Destination: "nvapi.dll"},
				{Source: "OpenCL32.dll", Destination: "OpenCL.dll"},
				{Source: "vulkan-1-x86.dll", Destination: "vulkan-1.dll"},
			},
		}
	}
	devices := wine.Discovered(t)
	if diff := cmp.Diff(want, byID(t, devices)); diff != "" {
		t.Errorf("the devices are not what they should be (-want +got):\n%s", diff)
	}
	var got []string
	for _, d := range devices {
		got = append(got, d.InstanceID)
	}
	if !slices.Equal(got, order) {
		t.Errorf("the devices come as %q, want them by their places", got)
	}

	// What a pod's container needs of them is the same when it is looked up alone.
	found := byID(t, wine.Found(t, strings.ToLower(order[2]), `PCI\VEN_10DE&DEV_1EB8\GONE`, order[0]))
	if len(found) != 2 {
		t.Errorf("found %d devices, want the two that are there", len(found))
	}
	for id, d := range found {
		full := want[id]
		for _, part := range []struct {
			name      string
			got, want any
		}{
			{"location path", d.LocationPath, full.LocationPath},
			{"driver store path", d.DriverStorePath, full.DriverStorePath},
			{"System32", d.System32, full.System32},
			{"SysWOW64", d.SysWOW64, full.SysWOW64},
			{"health", d.Health, full.Health},
			{"kind", d.Kind(), full.Kind()},
		} {
			if diff := cmp.Diff(part.want, part.got); diff != "" {
				t.Errorf("%s, looked up alone, has another %s (-want +got):\n%s", id, part.name, diff)
			}
		}
	}
}

// kindTest is a device, or an adapter, and what is to be found of it.
type kindTest struct {
	name    string
	device  *hardware.Device
	adapter *hardware.Adapter
	// id is the instance ID of what is found, "" for the device's.
	id string

	kind discovery.Kind
	// want has the fields that say what the device is.
	want discovery.Device
	// reason is part of why it cannot be used, "" when it can.
	reason string
	// notes are parts of its notes, all of which must be there.
	notes []string
}

// kindTests returns them. LUIDs are given out by kindHardware.
func kindTests() []kindTest {
	pci := func(id, location string) *hardware.Device {
		return &hardware.Device{
			InstanceID: `PCI\` + id, Class: hardware.ClassDisplay, Description: id, LocationPaths: []string{location},
			Status: hardware.Running,
			Driver: &hardware.Driver{Version: "1.2.3.4", INF: "oem7.inf", Values: []hardware.Value{
				hardware.Strings("", "UserModeDriverName", bed.DriverStore+`\gpu.inf_amd64_00\B1\user.dll`),
			}},
		}
	}
	full := func(a hardware.Adapter) *hardware.Adapter {
		a.Hardware, a.D3D11Graphics, a.D3D12Graphics, a.D3D12CoreCompute = true, true, true, true
		return &a
	}
	change := func(d *hardware.Device, f func(*hardware.Device)) *hardware.Device {
		f(d)
		return d
	}
	both := discovery.Device{SupportsDisplay: true, SupportsCompute: true}
	return []kindTest{
		{
			name:    "an AMD GPU",
			device:  pci(`VEN_1002&DEV_73BF&SUBSYS_0E3A1002&REV_C1\6&1A2B3C4D&0&00000019`, "PCIROOT(0)#PCI(0300)#PCI(0000)#PCI(0000)"),
			adapter: full(hardware.Adapter{DedicatedMemory: 16 << 30}),
			kind:    discovery.KindDisplay,
			want:    discovery.Device{VendorID: discovery.VendorAMD, SupportsDisplay: true, SupportsCompute: true, DedicatedMemory: 16 << 30},
		},
		{
			name:    "an Intel GPU that shares the processor's memory",
			device:  pci(`VEN_8086&DEV_9A49&SUBSYS_0A5E1028&REV_01\3&11583659&0&10`, "PCIROOT(0)#PCI(0200)"),
			adapter: full(hardware.Adapter{Integrated: true, DedicatedMemory: 128 << 20}),
			kind:    discovery.KindDisplay,
			want:    discovery.Device{VendorID: discovery.VendorIntel, SupportsDisplay: true, SupportsCompute: true, Integrated: true, DedicatedMemory: 128 << 20},
		},
		{
			name:    "a GPU in a Thunderbolt box",
			device:  pci(`VEN_10DE&DEV_2684&SUBSYS_167C10DE&REV_A1\7&2F3A1B9C&0&0008001D`, "PCIROOT(0)#PCI(1D00)#PCI(0000)#PCI(0100)#PCI(0000)"),
			adapter: full(hardware.Adapter{Detachable: true}),
			kind:    discovery.KindDisplay,
			want:    discovery.Device{VendorID: discovery.VendorNVIDIA, SupportsDisplay: true, SupportsCompute: true, Detachable: true},
		},
		{
			name:    "a GPU with Direct3D 11 alone",
			device:  pci(`VEN_10DE&DEV_0A65&SUBSYS_00000000&REV_A2\4&1&0&0008`, "PCIROOT(0)#PCI(0100)#PCI(0000)"),
			adapter: &hardware.Adapter{Hardware: true, D3D11Graphics: true},
			kind:    discovery.KindDisplay,
			want:    discovery.Device{VendorID: discovery.VendorNVIDIA, SupportsDisplay: true},
		},
		{
			name:    "a GPU with graphics and no core compute",
			device:  pci(`VEN_1002&DEV_9874&SUBSYS_00000000&REV_C4\3&2&0&08`, "PCIROOT(0)#PCI(0900)"),
			adapter: &hardware.Adapter{Hardware: true, D3D11Graphics: true, D3D12Graphics: true},
			kind:    discovery.KindDisplay,
			want:    discovery.Device{VendorID: discovery.VendorAMD, SupportsDisplay: true},
		},
		{
			name:    "a GPU whose driver has compute alone",
			device:  pci(`VEN_10DE&DEV_20B0&SUBSYS_134F10DE&REV_A1\6&3&0&0000`, "PCIROOT(C0)#PCI(0100)#PCI(0000)"),
			adapter: &hardware.Adapter{Hardware: true, D3D12CoreCompute: true},
			kind:    discovery.KindCompute,
			want:    discovery.Device{VendorID: discovery.VendorNVIDIA, SupportsCompute: true},
		},
		{
			name: "a neural processor",
			device: change(pci(`VEN_8086&DEV_7D1D&SUBSYS_0C8D1028&REV_04\3&11583659&0&58`, "PCIROOT(0)#PCI(0B00)"), func(d *hardware.Device) {
				d.Class = hardware.ClassComputeAccelerator
			}),
			adapter: &hardware.Adapter{Hardware: true, Integrated: true, D3D12CoreCompute: true},
			kind:    discovery.KindCompute,
			want:    discovery.Device{VendorID: discovery.VendorIntel, SupportsCompute: true, Integrated: true},
		},
		{
			name:    "a virtual function of a partitioned GPU",
			device:  pci(`VEN_1002&DEV_686C&SUBSYS_0C351002&REV_00\3&1C7C2B7B&0&00`, "ACPI(_SB_)#ACPI(VMOD)#ACPI(VMBS)#VMBUS({44C4F61D-4444-4400-9D52-802E27EDE19F}#{60C0B07A})#PCIROOT(0)#PCI(0000)"),
			adapter: full(hardware.Adapter{DedicatedMemory: 2 << 30}),
			kind:    discovery.KindDisplay,
			want:    discovery.Device{VendorID: discovery.VendorAMD, SupportsDisplay: true, SupportsCompute: true, DedicatedMemory: 2 << 30},
		},
		{
			name: "a device with no driver",
			device: change(pci(`VEN_10DE&DEV_1EB8&NONE\1`, "PCIROOT(0)#PCI(1100)"), func(d *hardware.Device) {
				d.Driver, d.Status, d.Problem = nil, hardware.Stopped, hardware.NoDriver
			}),
			kind:   discovery.KindDisplay,
			want:   discovery.Device{VendorID: discovery.VendorNVIDIA, SupportsDisplay: true},
			reason: "28",
		},
		{
			name: "a disabled device",
			device: change(pci(`VEN_10DE&DEV_1EB8&DISABLED\1`, "PCIROOT(0)#PCI(1200)"), func(d *hardware.Device) {
				d.Status, d.Problem = hardware.Stopped, hardware.Disabled
			}),
			kind:   discovery.KindDisplay,
			want:   discovery.Device{VendorID: discovery.VendorNVIDIA, SupportsDisplay: true},
			reason: "22",
		},
		{
			name: "a device that has failed",
			device: change(pci(`VEN_10DE&DEV_1EB8&FAILED\1`, "PCIROOT(0)#PCI(1300)"), func(d *hardware.Device) {
				d.Status, d.Problem = hardware.Stopped, hardware.Failed
			}),
			kind:   discovery.KindDisplay,
			want:   discovery.Device{VendorID: discovery.VendorNVIDIA, SupportsDisplay: true},
			reason: "43",
		},
		{
			name: "a device without a location path",
			device: change(pci(`VEN_10DE&DEV_1EB8&NOWHERE\1`, ""), func(d *hardware.Device) {
				d.LocationPaths = nil
			}),
			adapter: full(hardware.Adapter{}),
			kind:    discovery.KindDisplay,
			want:    discovery.Device{VendorID: discovery.VendorNVIDIA, SupportsDisplay: true, SupportsCompute: true},
			reason:  "location path",
		},
		{
			name:    "Microsoft Basic Render",
			adapter: &hardware.Adapter{Description: "Microsoft Basic Render Driver", D3D11Graphics: true, D3D12Graphics: true, D3D12CoreCompute: true},
			kind:    discovery.KindDisplay,
			want:    discovery.Device{Software: true, SupportsDisplay: true, SupportsCompute: true},
		},
		{
			name:    "an adapter that Plug and Play does not have",
			adapter: full(hardware.Adapter{Description: "of nobody"}),
			reason:  "Plug and Play",
		},
		{
			name: "a device whose location paths are of the wrong type",
			device: change(pci(`VEN_10DE&DEV_1EB8&PATHS\1`, "PCIROOT(0)#PCI(1400)"), func(d *hardware.Device) {
				d.Odd = []hardware.Property{{Format: "{a45c254e-df1c-4efd-8020-67d146a850e0}", ID: 37, Type: 0x7, Data: []byte{1, 2, 3, 4}}}
			}),
			adapter: full(hardware.Adapter{}),
			kind:    discovery.KindDisplay,
			want:    discovery.Device{VendorID: discovery.VendorNVIDIA, SupportsDisplay: true, SupportsCompute: true},
			reason:  "location path",
			notes:   []string{"failed to read a"},
		},
		{
			name: "a device whose LUID is cut short",
			device: change(pci(`VEN_10DE&DEV_1EB8&LUID\1`, "PCIROOT(0)#PCI(1500)"), func(d *hardware.Device) {
				d.Odd = []hardware.Property{{Format: "{60b193cb-5276-4d0f-96fc-f173abad3ec6}", ID: 2, Type: 0x9, Data: []byte{1, 2, 3}}}
			}),
			kind:  discovery.KindDisplay,
			want:  discovery.Device{VendorID: discovery.VendorNVIDIA, SupportsDisplay: true},
			notes: []string{"failed to read a"},
		},
		{
			name:    "an adapter that does not tell its memory",
			device:  pci(`VEN_10DE&DEV_1EB8&MEMORY\1`, "PCIROOT(0)#PCI(1600)"),
			adapter: full(hardware.Adapter{DedicatedMemory: 1 << 30, Refuses: pointer[uint32](7)}),
			kind:    discovery.KindDisplay,
			want:    discovery.Device{VendorID: discovery.VendorNVIDIA, SupportsDisplay: true, SupportsCompute: true},
			notes:   []string{"failed to read a"},
		},
		{
			name: "a device whose driver's folder nobody tells",
			device: change(pci(`VEN_10DE&DEV_1EB8&STORE\1`, "PCIROOT(0)#PCI(1700)"), func(d *hardware.Device) {
				d.Driver.Values = []hardware.Value{hardware.Strings("", "UserModeDriverName", "user.dll")}
			}),
			adapter: full(hardware.Adapter{}),
			kind:    discovery.KindDisplay,
			want:    both.Clone(),
			reason:  "driver store",
		},
	}
}

func testKinds(t *testing.T) {
	tests := kindTests()
	var h bed.Hardware
	for i := range tests {
		test := &tests[i]
		luid := uint64(0x1_0000_1000 + i) // With something in the upper half.
		if test.adapter != nil {
			test.adapter.LUID = luid
			h.Adapters = append(h.Adapters, *test.adapter)
			test.want.LUID = discovery.LUID(luid)
		}
		if test.device == nil {
			test.id = `DXCORE\` + discovery.LUID(luid).String()
			continue
		}
		test.id = test.device.InstanceID
		if test.adapter != nil {
			test.device.LUID = &luid
		}
		h.Devices = append(h.Devices, *test.device)
	}
	wine.Plug(t, h)
	found := byID(t, wine.Discovered(t))
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d, ok := found[test.id]
			if !ok {
				t.Fatalf("%s is not listed", test.id)
			}
			if d.Kind() != test.kind && !d.Software {
				t.Errorf("its kind is %q, want %q", d.Kind(), test.kind)
			}
			if test.device != nil && d.VendorID == discovery.VendorNVIDIA && test.want.VendorID == 0 {
				test.want.VendorID = d.VendorID
			}
			got := discovery.Device{
				VendorID: d.VendorID, LUID: d.LUID, DedicatedMemory: d.DedicatedMemory,
				Software: d.Software, Integrated: d.Integrated, Detachable: d.Detachable,
				SupportsDisplay: d.SupportsDisplay, SupportsCompute: d.SupportsCompute,
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("it is taken for something else (-want +got):\n%s", diff)
			}
			if d.Health.OK() != (test.reason == "") || !strings.Contains(d.Health.Reason, test.reason) {
				t.Errorf("its health is %q, want %q in it", d.Health.Reason, test.reason)
			}
			notes := strings.Join(d.Notes, "\n")
			for _, note := range test.notes {
				if !strings.Contains(notes, note) {
					t.Errorf("its notes are %q, want one that says %q", d.Notes, note)
				}
			}
			if test.device != nil && test.device.Problem != d.Problem || test.device != nil && test.device.Status != d.Status {
				t.Errorf("its status is %#x and its problem %d, want %#x and %d", d.Status, d.Problem, test.device.Status, test.device.Problem)
			}
		})
	}
	if len(found) != len(tests) {
		t.Errorf("%d devices are listed, want %d", len(found), len(tests))
	}
}

func testRuntimeFiles(t *testing.T) {
	store := bed.DriverStore + `\odd.inf_amd64_00`
	odd, adapter := t4(0)
	sound, soundAdapter := t4(1)
	values := []hardware.Value{hardware.Strings("", "UserModeDriverName", store+`\user.dll`)}
	var want []discovery.RuntimeFile

	// More than 10 kB of values in one list, and in one value.
	const count = 300
	for i := range count {
		name := fmt.Sprintf("a-file-with-a-name-of-some-length-%03d.dll", i)
		values = append(values, hardware.Strings("CopyToVmOverwrite", fmt.Sprintf("a%03d", i), name))
		want = append(want, discovery.RuntimeFile{Source: name, Destination: name})
	}
	deep := strings.Repeat(`a-folder\`, 600) + "deep.dll"
	values = append(values, hardware.Strings("CopyToVmOverwrite", "b", deep))
	want = append(want, discovery.RuntimeFile{Source: deep, Destination: "deep.dll"})

	sub := "CopyToVmWhenNewer"
	passedOver := []hardware.Value{
		hardware.Binary(sub, "a-binary", []byte("b.dll")),
		hardware.Binary(sub, "a-nothing", nil),
		{Subkey: sub, Name: "a-half", Type: 7, Data: []byte{'x', 0, '.'}},
		{Subkey: sub, Name: "a-bare", Type: 7},
		hardware.Strings(sub, "a-empty"),
		hardware.Strings(sub, "a-empties", "", ""),
		hardware.Strings(sub, "a-three", "one.dll", "two.dll", "three.dll"),
		hardware.Strings(sub, "b-second", "other.dll", "FIRST.DLL"),
		hardware.Strings(sub, "c-up", `..\evil.dll`),
		hardware.Strings(sub, "c-up-later", `sub\..\..\evil.dll`),
		hardware.Strings(sub, "c-up-slash", `sub/../../evil.dll`),
		hardware.Strings(sub, "c-absolute", `\evil.dll`),
		hardware.Strings(sub, "c-drive", `C:\evil.dll`),
		hardware.Strings(sub, "c-drive-relative", `C:evil.dll`),
		hardware.Strings(sub, "c-share", `\\server\share\evil.dll`),
		hardware.Strings(sub, "c-device", `\\.\evil`),
		hardware.Strings(sub, "c-verbatim", `\\?\C:\evil.dll`),
		hardware.Strings(sub, "c-stream", `evil.dll:stream`),
		hardware.Strings(sub, "c-reserved", `NUL`),
		hardware.Strings(sub, "d-up", "good.dll", `..\evil.dll`),
		hardware.Strings(sub, "d-folder", "good.dll", `sub\evil.dll`),
		hardware.Strings(sub, "d-drive", "good.dll", `C:\evil.dll`),
		hardware.Strings(sub, "d-stream", "good.dll", `evil.dll:stream`),
		hardware.Strings(sub, "d-dots", "good.dll", ".."),
	}
	good := []struct {
		value hardware.Value
		file  discovery.RuntimeFile
	}{
		{hardware.Strings(sub, "a-first", "first.dll"), discovery.RuntimeFile{Source: "first.dll", Destination: "first.dll"}},
		{hardware.String(sub, "e-string", "single.dll"), discovery.RuntimeFile{Source: "single.dll", Destination: "single.dll"}},
		{hardware.Strings(sub, "f-empty-name", `B1\unnamed.dll`, ""), discovery.RuntimeFile{Source: `B1\unnamed.dll`, Destination: "unnamed.dll"}},
		{hardware.Strings(sub, "g-letters", "größe 🎮.dll", "größe.dll"), discovery.RuntimeFile{Source: "größe 🎮.dll", Destination: "größe.dll"}},
		{hardware.Value{Subkey: sub, Name: "h-endless", Type: 7, Data: []byte{'e', 0, '.', 0, 'd', 0}}, discovery.RuntimeFile{Source: "e.d", Destination: "e.d"}},
		{hardware.Strings(sub, strings.Repeat("n", 300), "named.dll"), discovery.RuntimeFile{Source: "named.dll", Destination: "named.dll"}},
	}
	values = append(values, passedOver...)
	for _, g := range good {
		values = append(values, g.value)
		want = append(want, g.file)
	}
	odd.Driver = &hardware.Driver{Version: "1.2.3.4", INF: "oem3.inf", Values: values}
	wine.Plug(t, bed.Hardware{Devices: []hardware.Device{odd, sound}, Adapters: []hardware.Adapter{adapter, soundAdapter}})

	found := byID(t, wine.Discovered(t))
	got := found[odd.InstanceID]
	if diff := cmp.Diff(want, got.System32); diff != "" {
		t.Errorf("the files are not those of the driver's lists (-want +got):\n%s", diff)
	}
	if len(got.SysWOW64) != 0 {
		t.Errorf("the files for 32-bit programs are %v, want none", got.SysWOW64)
	}
	if !got.Health.OK() {
		t.Errorf("the device cannot be used: %s", got.Health.Reason)
	}
	notes := strings.Join(got.Notes, "\n")
	for _, name := range []string{"a-binary", "a-half", "b-second", "c-up"} {
		if !strings.Contains(notes, name) {
			t.Errorf("the notes do not say that the value %s was passed over:\n%s", name, notes)
		}
	}
	if len(got.Notes) > 30 {
		t.Errorf("there are %d notes, want few", len(got.Notes))
	}
	if other := found[sound.InstanceID]; len(other.System32) != 8 || len(other.SysWOW64) != 6 || len(other.Notes) > 0 {
		t.Errorf("the other device is %+v, want it as if it were alone", other)
	}
	// A value is passed over alone when it is looked up for a container, too.
	if diff := cmp.Diff(want, wine.Found(t, odd.InstanceID)[0].System32); diff != "" {
		t.Errorf("the files, looked up alone, are not those of the driver's lists (-want +got):\n%s", diff)
	}
}

func testChanges(t *testing.T) {
	h := plugT4(t, 1)
	watchers := map[string]*bed.Watcher{"notified": wine.Watch(t, true), "not notified": wine.Watch(t, false)}
	// told waits until both have told of a list that check is content with.
	told := func(what string, check func([]discovery.Device) error) {
		t.Helper()
		begin := time.Now()
		waiting := maps.Clone(watchers)
		bed.Eventually(t, what, func() (err error) {
			for name, watcher := range waiting {
				lists := watcher.Lists(t)
				if len(lists) == 0 {
					err = fmt.Errorf("%s: it has told of nothing", name)
				} else if e := check(lists[len(lists)-1]); e != nil {
					err = fmt.Errorf("%s: %w", name, e)
				} else {
					t.Logf("%s: told after %v, %s", what, time.Since(begin).Round(time.Millisecond), name)
					delete(waiting, name)
				}
			}
			return err
		})
	}
	count := func(n int) func([]discovery.Device) error {
		return func(devices []discovery.Device) error {
			for _, d := range devices {
				if len(d.System32) != 8 {
					return fmt.Errorf("%s has %d files", d.Name(), len(d.System32))
				}
			}
			if len(devices) != n {
				return fmt.Errorf("there are %d devices, want %d", len(devices), n)
			}
			return nil
		}
	}
	told("the first list", count(1))

	device, adapter := t4(1)
	h.Devices, h.Adapters = append(h.Devices, device), append(h.Adapters, adapter)
	wine.Plug(t, h)
	told("an adapter that was added", count(2))

	const newStore = bed.DriverStore + `\nvgridsw_aws.inf_amd64_77aa5b3c2d1e0f99`
	h.Devices[0].Driver = nvidia(newStore, "32.0.15.7000")
	h.Devices[0].Driver.Values = append(h.Devices[0].Driver.Values, hardware.Strings("CopyToVmOverwrite", "File99", "nvnew64.dll"))
	wine.Plug(t, h)
	replaced := func(devices []discovery.Device) error {
		d := devices[0]
		if d.DriverStorePath != newStore || d.DriverVersion != "32.0.15.7000" || len(d.System32) != 9 {
			return fmt.Errorf("the device is %+v", d)
		}
		return nil
	}
	told("a driver that was replaced", replaced)
	if err := replaced(wine.Found(t, h.Devices[0].InstanceID)); err != nil {
		t.Errorf("looked up alone: %v", err)
	}

	h.Devices[1].Status, h.Devices[1].Problem = hardware.Stopped, hardware.Disabled
	wine.Plug(t, h)
	told("a device that was disabled", func(devices []discovery.Device) error {
		if d, ok := discovery.Find(devices, device.InstanceID); !ok || d.Health.OK() {
			return fmt.Errorf("the devices are %+v", devices)
		}
		return nil
	})

	wine.Plug(t, bed.Hardware{Devices: h.Devices[1:], Adapters: h.Adapters[1:]})
	told("an adapter that was removed", count(1))
	if found := wine.Found(t, h.Devices[0].InstanceID); len(found) > 0 {
		t.Errorf("the device that was removed is found: %+v", found)
	}
	wine.Plug(t, bed.Hardware{})
	told("the last adapter that was removed", count(0))

	if log := watchers["not notified"].Log(t); !strings.Contains(log, "twice a second") {
		t.Errorf("the log does not say that devices are looked at twice a second:\n%s", log)
	}
	if log := watchers["notified"].Log(t); strings.Contains(log, "twice a second") {
		t.Errorf("where Windows tells of changes, devices are looked at twice a second:\n%s", log)
	}
	// The double refuses a registration that is not well formed.
	notifications := wine.Notifications(t)
	for _, want := range []string{
		"registered:0", "registered:2",
		"told:0:7", "told:0:8", "told:0:9", // Of device instances.
		"told:{1ca05180-a699-450a-9a0c-de4fbe3ddd89}:0", "told:{1ca05180-a699-450a-9a0c-de4fbe3ddd89}:1",
	} {
		if !slices.Contains(notifications, want) {
			t.Errorf("the configuration manager has not done %q, but %q", want, notifications)
		}
	}
}

// crowd plugs 64 Tesla T4.
func crowd(t testing.TB) {
	t.Helper()
	var h bed.Hardware
	for i := range 64 {
		device, adapter := t4(i % 4)
		adapter.LUID += uint64(i) << 32
		luid := adapter.LUID
		device.LUID = &luid
		device.InstanceID += fmt.Sprintf("%02X", i)
		device.LocationPaths = []string{fmt.Sprintf("PCIROOT(%X)#PCI(%X00)", i/4, 0x1b+i%4)}
		device.BusNumber = pointer(uint32(i / 4))
		h.Devices, h.Adapters = append(h.Devices, device), append(h.Adapters, adapter)
	}
	wine.Plug(t, h)
}

func testRounds(t *testing.T) {
	crowd(t)
	few := wine.DiscoverRounds(t, 20)
	t.Logf("%d devices: %v for each round", few.Devices, few.PerRound)
	if few.Devices < 64 {
		t.Errorf("%d devices are found, want 64", few.Devices)
	}
	plugT4(t, 1)
	many := wine.DiscoverRounds(t, 10_000)
	t.Logf("%d device: %v for each round; before %+v, after %+v", many.Devices, many.PerRound, many.Before, many.After)
	for _, rounds := range []bed.Rounds{few, many} {
		before, after := rounds.Before, rounds.After
		// Less than one for a hundred rounds: the Go runtime may start a thread, or
		// keep some memory.
		limit := max(rounds.Rounds/100, 20)
		if after.Handles-before.Handles > limit {
			t.Errorf("after %d rounds the process has %d handles, before them %d", rounds.Rounds, after.Handles, before.Handles)
		}
		if after.Goroutines > before.Goroutines {
			t.Errorf("after %d rounds there are %d goroutines, before them %d", rounds.Rounds, after.Goroutines, before.Goroutines)
		}
		if after.Objects != 0 {
			t.Errorf("after %d rounds %d objects of DXCore are alive, want none", rounds.Rounds, after.Objects)
		}
		const kilobyte = 1 << 10
		if growth := after.Heap - before.Heap; growth > 256*kilobyte {
			t.Errorf("after %d rounds the heap has grown by %d bytes", rounds.Rounds, growth)
		}
		// The Go runtime may take a megabyte or two; what each round loses, of more
		// than 400 bytes, shows.
		if growth := after.Private - before.Private; rounds.Rounds >= 10_000 && (before.Private == 0 || growth > 4000*kilobyte) {
			t.Errorf("after %d rounds the process has grown by %d bytes", rounds.Rounds, growth)
		}
	}
}

func testWithoutDXCore(t *testing.T) {
	npu := hardware.Device{
		InstanceID: `PCI\VEN_8086&DEV_7D1D&SUBSYS_0C8D1028&REV_04\3&11583659&0&58`, Class: hardware.ClassComputeAccelerator,
		LocationPaths: []string{"PCIROOT(0)#PCI(0B00)"}, Status: hardware.Running,
		Driver: nvidia(bed.DriverStore+`\npu.inf_amd64_00`, "1.2.3.4"),
	}
	gpu, adapter := t4(0)
	wine.Plug(t, bed.Hardware{Devices: []hardware.Device{gpu, npu}, Adapters: []hardware.Adapter{adapter}})
	found := byID(t, wine.DiscoveredWithoutDXCore(t))
	if len(found) != 2 {
		t.Errorf("%d devices are found, want 2", len(found))
	}
	for id, kind := range map[string]discovery.Kind{gpu.InstanceID: discovery.KindDisplay, npu.InstanceID: discovery.KindCompute} {
		d := found[id]
		if d.Kind() != kind || !d.Health.OK() || d.DedicatedMemory != 0 || len(d.System32) != 8 || len(d.SysWOW64) != 6 {
			t.Errorf("%s is %+v, want it of kind %q by its class, with its files", id, d, kind)
		}
		if notes := strings.Join(d.Notes, "\n"); !strings.Contains(notes, "DXCore") || !strings.Contains(notes, "memory") {
			t.Errorf("the notes of %s do not say what is not known: %q", id, d.Notes)
		}
	}
}

// testLive is the chain from hardware to HCS, without an inventory.
func testLive(t *testing.T) {
	inventory := bed.NewInventory("live")
	n := node{start(t, bed.Options{Name: "live", Inventory: inventory, Live: true}), inventory.GPUs}
	t.Run("as with an inventory", func(t *testing.T) { testChain(t, n) })
	plug := func(gpus ...bed.GPU) {
		t.Helper()
		wine.Plug(t, (&bed.Inventory{GPUs: gpus}).Hardware(t, wine))
	}
	old, other := n.gpus[0], n.gpus[1]
	token := n.Record(t, bed.Display, old.Replica(7))
	pod := n.sandbox(t, bed.Directx, "live-pods")

	t.Run("a driver that is replaced under a pod", func(t *testing.T) {
		id := "live-before"
		if err := n.allocated(t, pod, id, "app", token); err != nil {
			t.Fatal(err)
		}
		n.mustHave(t, id, old)
		renewed := old
		renewed.Store = bed.DriverStore + `\live0.inf_amd64_9999999999999999`
		renewed.Files = []bed.File{{Source: "nvcuda_new64.dll", Name: "nvcuda.dll"}, {Source: "nvnew32.dll", Name: "nvnew.dll", WOW64: true}}
		plug(renewed, other)
		n.Delete(t, id)
		id = "live-after"
		if err := n.allocated(t, pod, id, "app", token); err != nil {
			t.Fatal(err)
		}
		n.mustHave(t, id, renewed)
		n.Delete(t, id)
	})
	t.Run("a GPU that is removed", func(t *testing.T) {
		plug(other)
		id := "live-removed"
		n.mustRefuse(t, id, n.allocated(t, pod, id, "app", token), `"app"`, bed.Display, old.InstanceID)
		id = "live-left"
		spec := n.Standalone(t, id)
		spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES=all")
		n.MustRun(t, bed.Directx, id, bed.JSON(t, spec))
		n.mustHave(t, id, other)
	})
	t.Run("a GPU by its LUID", func(t *testing.T) {
		plug(old, other)
		id := "live-luid"
		spec := n.Standalone(t, id)
		spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES="+other.LUID)
		n.MustRun(t, bed.Directx, id, bed.JSON(t, spec))
		n.mustHave(t, id, other)
	})
	t.Run("a GPU that is disabled", func(t *testing.T) {
		h := (&bed.Inventory{GPUs: []bed.GPU{old, other}}).Hardware(t, wine)
		h.Devices[0].Status, h.Devices[0].Problem = hardware.Stopped, hardware.Disabled
		wine.Plug(t, h)
		id := "live-disabled"
		n.mustRefuse(t, id, n.allocated(t, pod, id, "app", token), `"app"`, "disabled")
	})
}

// testTold looks at dxctl, by which a person confirms on a node what is shown
// here.
func testTold(t *testing.T) {
	h := plugT4(t, 2)
	type device struct {
		InstanceID, Kind, Health, LocationPath, DriverStorePath string
		System32, SysWOW64                                      []discovery.RuntimeFile
	}
	var devices []device
	wine.DxctlJSON(t, &devices, "devices", "--state-dir", `C:\none`)
	if len(devices) != len(h.Devices) {
		t.Errorf("dxctl tells of %d devices, want %d", len(devices), len(h.Devices))
	}
	for i, d := range devices {
		plugged := h.Devices[i]
		if d.InstanceID != plugged.InstanceID || d.LocationPath != plugged.LocationPaths[0] || d.Kind != string(discovery.KindDisplay) ||
			d.Health != "healthy" || d.DriverStorePath != t4Store || len(d.System32) != 8 || len(d.SysWOW64) != 6 {
			t.Errorf("dxctl tells %+v of %s", d, plugged.InstanceID)
		}
	}

	type capabilities struct {
		Windows struct {
			Build      uint32
			HCSSchemas []string
			HCSError   string
		}
		Assignment, Reason string
	}
	for _, test := range []struct {
		name       string
		properties string
		schemas    []string
		assignment string
	}{
		{"Windows Server 2019", schemas(0, 1), []string{"1.0", "2.0", "2.1"}, "class-guid"},
		{"Windows Server 2022", schemas(0, 1, 2, 3, 4, 5), []string{"1.0", "2.0", "2.1", "2.2", "2.3", "2.4", "2.5"}, "location-path"},
		{"an HCS that refuses to answer", "", nil, "class-guid"},
	} {
		var got capabilities
		wine.Capabilities(t, test.properties, &got)
		if !slices.Equal(got.Windows.HCSSchemas, test.schemas) || got.Assignment != test.assignment || got.Reason == "" || (got.Windows.HCSError != "") != (test.properties == "") {
			t.Errorf("%s: dxctl tells %+v, want assignment by %s and the schemas %q", test.name, got, test.assignment, test.schemas)
		}
		if got.Windows.Build != 18362 { // Wine 8's Windows 10.
			t.Errorf("the build is %d, want 18362", got.Windows.Build)
		}
	}
	var without capabilities
	wine.DxctlJSON(t, &without, "capabilities")
	if without.Windows.HCSError == "" || without.Assignment != "class-guid" {
		t.Errorf("without HCS dxctl tells %+v", without)
	}
}

// testUUIDs asks NVIDIA's driver for the UUIDs of its GPUs.
func testUUIDs(t *testing.T) {
	h := plugT4(t, 3)
	want := map[string]string{}
	places := map[string]string{}
	for i, d := range h.Devices[:2] { // The driver does not know the last.
		uuid := fmt.Sprintf("GPU-8932f937-d72c-4106-c12f-20bd9faed9f%d", i)
		want[d.InstanceID] = uuid
		places[fmt.Sprintf("00000000:%02X:%02X.0", *d.BusNumber, *d.Address>>16)] = uuid
	}
	for _, d := range wine.Identified(t, places) {
		if d.UUID != want[d.InstanceID] {
			t.Errorf("the UUID of %s is %q, want %q", d.InstanceID, d.UUID, want[d.InstanceID])
		}
		if d.Kind() != discovery.KindDisplay || !d.Health.OK() {
			t.Errorf("it is found as %+v", d)
		}
	}
}

// BenchmarkDiscovery tells what one round with 64 devices takes.
func BenchmarkDiscovery(b *testing.B) {
	if skip != "" {
		b.Skip(skip)
	}
	crowd(b)
	for b.Loop() {
		rounds := wine.DiscoverRounds(b, 20)
		b.ReportMetric(float64(rounds.PerRound.Microseconds())/1000, "ms/round")
	}
	b.ReportMetric(0, "ns/op") // A process that makes the rounds.
}
