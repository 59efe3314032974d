//go:build e2e && windows

package windows

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"directx-nri/discovery"
	"directx-nri/test/windows/bed"
)

// TestDiscovery changes the hardware of the prefix and checks the product's discovery. Its
// subtests share the hardware, and it runs before the parallel tests: services that they
// start make Wine remove the devices.
//
//nolint:paralleltest // See above.
func TestDiscovery(t *testing.T) {
	machine.NeedsDoubles(t, "hardware is plugged in")
	for _, part := range []part{
		{"four Tesla T4", testFourT4},
		{"kinds of devices", testKinds},
		{"changes", testChanges},
		{"without DXCore", testWithoutDXCore},
		{"containers", testLive},
		{"UUIDs", testUUIDs},
		{"single devices or the class", testAssignment},
		{"example programs", testExamples},
		{"unit tests", testUnits},
	} {
		t.Run(part.name, part.run)
	}
}

// t4Store is the driver store path on a g4dn instance of AWS.
const t4Store = bed.DriverStore + `\nvgridsw_aws.inf_amd64_1b50ef32b191cff1`

// t4Memory is in bytes.
const t4Memory = 15 << 30

// t4 returns the i-th of four Tesla T4 of a g4dn instance, as Windows and DXCore report it.
func t4(i int) (bed.Device, bed.Adapter) {
	luid := []uint64{7048070, 7098126, 7148182, 7198238}[i]
	slot := uint32(0x1b + i)
	device := bed.Device{
		InstanceID:    fmt.Sprintf(`PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\3&13C0B0C5&1&%X`, slot<<3),
		Class:         bed.ClassDisplay,
		Description:   "NVIDIA Tesla T4",
		Manufacturer:  "NVIDIA",
		HardwareIDs:   []string{`PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1`, `PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE`},
		LocationPaths: []string{fmt.Sprintf("PCIROOT(0)#PCI(%X00)", slot), fmt.Sprintf("ACPI(_SB_)#ACPI(PCI0)#ACPI(S%X_)", slot<<3)},
		LUID:          &luid,
		NUMANode:      new(uint32(0)),
		BusNumber:     new(uint32(0)),
		Address:       new(slot << 16),
		Status:        bed.Running,
		Driver:        nvidia(t4Store, "31.0.15.5222"),
	}
	adapter := bed.Adapter{
		LUID: luid, Description: "NVIDIA Tesla T4", Hardware: true, DedicatedMemory: t4Memory,
		D3D11Graphics: true, D3D12Graphics: true, D3D12CoreCompute: true,
	}
	return device, adapter
}

// runtimeFiles are the files of NVIDIA's driver, by the subkey that lists them.
func runtimeFiles() map[string][]discovery.RuntimeFile {
	return map[string][]discovery.RuntimeFile{
		"CopyToVmOverwrite": {
			{Source: "nvcudadebugger.dll", Destination: "nvcudadebugger.dll"}, {Source: "nvcuda_loader64.dll", Destination: "nvcuda.dll"},
			{Source: "nvcuvid64.dll", Destination: "nvcuvid.dll"}, {Source: "nvEncodeAPI64.dll", Destination: "nvEncodeAPI64.dll"},
			{Source: "nvapi64.dll", Destination: "nvapi64.dll"}, {Source: "nvml_loader.dll", Destination: "nvml.dll"},
		},
		"CopyToVmWhenNewer": {{Source: "OpenCL64.dll", Destination: "OpenCL.dll"}, {Source: "vulkan-1-x64.dll", Destination: "vulkan-1.dll"}},
		"CopyToVmOverwriteWow64": {
			{Source: "nvcuda_loader32.dll", Destination: "nvcuda.dll"}, {Source: "nvcuvid32.dll", Destination: "nvcuvid.dll"},
			{Source: "nvEncodeAPI.dll", Destination: "nvEncodeAPI.dll"}, {Source: "nvapi.dll", Destination: "nvapi.dll"},
		},
		"CopyToVmWhenNewerWow64": {{Source: "OpenCL32.dll", Destination: "OpenCL.dll"}, {Source: "vulkan-1-x86.dll", Destination: "vulkan-1.dll"}},
	}
}

// nvidia returns a driver of NVIDIA with its usual files.
func nvidia(store, version string) *bed.Driver {
	d := &bed.Driver{Version: version, INF: "oem12.inf"}
	d.Set("", "UserModeDriverName", slices.Repeat([]string{store + `\nvldumdx.dll`}, 4))
	d.Set("", "UserModeDriverNameWow", slices.Repeat([]string{store + `\nvldumd.dll`}, 4))
	d.Set("", "DriverDesc", "NVIDIA Tesla T4")
	for subkey, files := range runtimeFiles() {
		for i, f := range files {
			names := []string{f.Source, f.Destination}
			if f.Source == f.Destination {
				names = names[:1]
			}
			d.Set(subkey, fmt.Sprintf("File%02d", i), names)
		}
	}
	return d
}

// plugT4 plugs n Tesla T4 in and returns them.
func plugT4(t *testing.T, n int) bed.Hardware {
	t.Helper()
	var h bed.Hardware
	for i := range n {
		device, adapter := t4(i)
		h.Devices, h.Adapters = append(h.Devices, device), append(h.Adapters, adapter)
	}
	machine.Plug(t, h)
	return h
}

// byID returns devices by instance ID, without the driver key's number, which differs, and
// without the note that Wine has no SetupGetInfDriverStoreLocation.
func byID(t *testing.T, devices []discovery.Device) map[string]discovery.Device {
	t.Helper()
	found := map[string]discovery.Device{}
	for _, d := range devices {
		if _, twice := found[d.InstanceID]; twice {
			t.Errorf("%s is listed twice", d.InstanceID)
		}
		if class, number, _ := strings.Cut(d.DriverKey, `\`); d.DriverKey != "" && (len(class) != len(bed.ClassDisplay) || len(number) != 4) {
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
	h := plugT4(t, 4)
	files := runtimeFiles()
	want := map[string]discovery.Device{}
	for i, d := range h.Devices {
		want[d.InstanceID] = discovery.Device{
			InstanceID:      d.InstanceID,
			Description:     "NVIDIA Tesla T4",
			VendorID:        discovery.VendorNVIDIA,
			Manufacturer:    "NVIDIA",
			LocationPath:    []string{"PCIROOT(0)#PCI(1B00)", "PCIROOT(0)#PCI(1C00)", "PCIROOT(0)#PCI(1D00)", "PCIROOT(0)#PCI(1E00)"}[i],
			LUID:            discovery.LUID(*d.LUID),
			DriverVersion:   "31.0.15.5222",
			DriverStorePath: t4Store,
			DedicatedMemory: t4Memory,
			NUMANode:        new(0),
			BusNumber:       d.BusNumber,
			Address:         d.Address,
			Status:          bed.Running,
			SupportsDisplay: true,
			SupportsCompute: true,
			System32:        slices.Concat(files["CopyToVmOverwrite"], files["CopyToVmWhenNewer"]),
			SysWOW64:        slices.Concat(files["CopyToVmOverwriteWow64"], files["CopyToVmWhenNewerWow64"]),
		}
	}
	if diff := cmp.Diff(want, byID(t, machine.Devices(t))); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
}

// testKinds has devices and adapters that are read in different ways. Unit tests have all
// kinds of devices and runtime files.
func testKinds(t *testing.T) {
	h := plugT4(t, 3)
	h.Adapters[0].Refuses = new(uint32(7)) // its memory
	h.Devices[1].Odd = []bed.Property{bed.OddLocationPaths(), bed.OddLUID()}
	h.Devices[2].Driver, h.Devices[2].Status, h.Devices[2].Problem = nil, bed.Stopped, bed.NoDriver
	npu, npuLUID := bed.Device{
		InstanceID: `PCI\VEN_8086&DEV_7D1D&SUBSYS_0C8D1028&REV_04\3&11583659&0&58`, Class: bed.ClassComputeAccelerator,
		LocationPaths: []string{"PCIROOT(0)#PCI(0B00)"}, Status: bed.Running, Driver: nvidia(t4Store, "1.2.3.4"),
	}, uint64(0x1_0000_1000) // The upper half is not zero.
	npu.LUID = &npuLUID
	h.Devices = append(h.Devices, npu)
	alone := h.Adapters[1]
	h.Adapters = []bed.Adapter{h.Adapters[0], alone,
		{LUID: npuLUID, Hardware: true, Integrated: true, D3D12CoreCompute: true, DedicatedMemory: 128 << 20},
		{LUID: 0x1001, Description: "Microsoft Basic Render Driver", D3D11Graphics: true, D3D12Graphics: true, D3D12CoreCompute: true}}
	machine.Plug(t, h)
	found := byID(t, machine.Devices(t))
	want := map[string]struct {
		device       discovery.Device
		kind         discovery.Kind
		reason, note string
	}{
		h.Devices[0].InstanceID:                         {discovery.Device{LUID: discovery.LUID(h.Adapters[0].LUID)}, discovery.KindDisplay, "", "failed to read a"},
		h.Devices[1].InstanceID:                         {discovery.Device{}, discovery.KindNone, "location path", "failed to read a"},
		h.Devices[2].InstanceID:                         {discovery.Device{LUID: discovery.LUID(*h.Devices[2].LUID)}, discovery.KindDisplay, "28", ""},
		npu.InstanceID:                                  {discovery.Device{LUID: discovery.LUID(npuLUID), Integrated: true, DedicatedMemory: 128 << 20}, discovery.KindCompute, "", ""},
		`DXCORE\` + discovery.LUID(alone.LUID).String(): {discovery.Device{LUID: discovery.LUID(alone.LUID), DedicatedMemory: t4Memory}, discovery.KindNone, "Plug and Play", ""},
		`DXCORE\` + discovery.LUID(0x1001).String():     {discovery.Device{LUID: 0x1001, Software: true}, discovery.KindNone, "", ""},
	}
	for id, test := range want {
		d := found[id]
		got := discovery.Device{LUID: d.LUID, DedicatedMemory: d.DedicatedMemory, Software: d.Software, Integrated: d.Integrated, Detachable: d.Detachable}
		if diff := cmp.Diff(test.device, got); diff != "" || d.Kind() != test.kind {
			t.Errorf("%s is of kind %q, want %q (-want +got):\n%s", id, d.Kind(), test.kind, diff)
		}
		if d.Health.OK() != (test.reason == "") || !strings.Contains(d.Health.Reason, test.reason) || !strings.Contains(strings.Join(d.Notes, "\n"), test.note) {
			t.Errorf("%s: health %q, notes %q; want %q and %q in them", id, d.Health.Reason, d.Notes, test.reason, test.note)
		}
	}
	if len(found) != len(want) {
		t.Errorf("%d devices are listed, want %d", len(found), len(want))
	}
}

func testChanges(t *testing.T) {
	h := plugT4(t, 1)
	watchers := map[string]bed.Watcher{"notified": machine.Watch(t, "watch-notified.exe"), "not notified": machine.Watch(t, "watch.exe")}
	// await waits until the last list of both passes check.
	await := func(what string, check func([]discovery.Device) error) {
		t.Helper()
		bed.Eventually(t, what, func() error {
			for name, watcher := range watchers {
				devices, ok := watcher.Last(t)
				if err := check(devices); err != nil || !ok {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			return nil
		})
	}
	count := func(n int) func([]discovery.Device) error {
		return func(devices []discovery.Device) error {
			if len(devices) != n || slices.ContainsFunc(devices, func(d discovery.Device) bool { return len(d.System32) != 8 }) {
				return fmt.Errorf("the devices are %+v, want %d with 8 files each", devices, n)
			}
			return nil
		}
	}
	await("the first list", count(1))

	device, adapter := t4(1)
	h.Devices, h.Adapters = append(h.Devices, device), append(h.Adapters, adapter)
	machine.Plug(t, h)
	await("an adapter that was added", count(2))

	const newStore = bed.DriverStore + `\nvgridsw_aws.inf_amd64_77aa5b3c2d1e0f99`
	h.Devices[0].Driver = nvidia(newStore, "32.0.15.7000")
	h.Devices[0].Driver.Set("CopyToVmOverwrite", "File99", []string{"nvnew64.dll"})
	machine.Plug(t, h)
	replaced := func(devices []discovery.Device) error {
		if d := devices[0]; d.DriverStorePath != newStore || d.DriverVersion != "32.0.15.7000" || len(d.System32) != 9 {
			return fmt.Errorf("the device is %+v", d)
		}
		return nil
	}
	await("a driver that was replaced", replaced)
	if err := replaced(machine.Find(t, h.Devices[0].InstanceID)); err != nil {
		t.Errorf("lookup: %v", err)
	}

	h.Devices[1].Status, h.Devices[1].Problem = bed.Stopped, bed.Disabled
	machine.Plug(t, h)
	await("a device that was disabled", func(devices []discovery.Device) error {
		if d, ok := discovery.Find(devices, device.InstanceID); !ok || d.Health.OK() {
			return fmt.Errorf("the devices are %+v", devices)
		}
		return nil
	})

	machine.Plug(t, bed.Hardware{Devices: h.Devices[1:], Adapters: h.Adapters[1:]})
	await("an adapter that was removed", count(1))
	if found := machine.Find(t, h.Devices[0].InstanceID); len(found) > 0 {
		t.Errorf("the device that was removed is found: %+v", found)
	}
	machine.Plug(t, bed.Hardware{})
	await("the last adapter that was removed", count(0))

	if log := watchers["not notified"].Log(); !strings.Contains(log, "every two seconds") {
		t.Errorf("the log does not report that devices are polled:\n%s", log)
	}
	if log := watchers["notified"].Log(); strings.Contains(log, "every two seconds") {
		t.Errorf("devices are polled although Windows reports changes:\n%s", log)
	}
	// The double refuses a malformed registration.
	notifications := machine.Notifications(t)
	for _, want := range []string{
		"registered:0",
		"event:{1ca05180-a699-450a-9a0c-de4fbe3ddd89}:0", "event:{1ca05180-a699-450a-9a0c-de4fbe3ddd89}:1",
	} {
		if !slices.Contains(notifications, want) {
			t.Errorf("the double has no record %q: %q", want, notifications)
		}
	}
}

func testWithoutDXCore(t *testing.T) {
	npu := bed.Device{
		InstanceID: `PCI\VEN_8086&DEV_7D1D&SUBSYS_0C8D1028&REV_04\3&11583659&0&58`, Class: bed.ClassComputeAccelerator,
		LocationPaths: []string{"PCIROOT(0)#PCI(0B00)"}, Status: bed.Running,
		Driver: nvidia(bed.DriverStore+`\npu.inf_amd64_00`, "1.2.3.4"),
	}
	gpu, adapter := t4(0)
	machine.Plug(t, bed.Hardware{Devices: []bed.Device{gpu, npu}, Adapters: []bed.Adapter{adapter}})
	watcher := machine.Watch(t, "watch-without-dxcore.exe")
	found := map[string]discovery.Device{}
	bed.Eventually(t, "two devices are found", func() error {
		devices, _ := watcher.Last(t)
		if found = byID(t, devices); len(found) != 2 {
			return fmt.Errorf("the devices are %+v", devices)
		}
		return nil
	})
	for id, kind := range map[string]discovery.Kind{gpu.InstanceID: discovery.KindDisplay, npu.InstanceID: discovery.KindCompute} {
		d := found[id]
		if d.Kind() != kind || !d.Health.OK() || d.DedicatedMemory != 0 || len(d.System32) != 8 || len(d.SysWOW64) != 6 {
			t.Errorf("%s is %+v, want it of kind %q by its class, with its files", id, d, kind)
		}
		if notes := strings.Join(d.Notes, "\n"); !strings.Contains(notes, "DXCore") || !strings.Contains(notes, "memory") {
			t.Errorf("the notes of %s do not report what is unknown: %q", id, d.Notes)
		}
	}
}

// testLive has containers of GPUs that are discovered.
func testLive(t *testing.T) {
	n := start(t, bed.Options{Name: "live", Live: true})
	plug := func(gpus ...bed.GPU) {
		t.Helper()
		machine.Plug(t, (&bed.Inventory{GPUs: gpus}).Hardware(t))
	}
	old, other := n.GPUs[0], n.GPUs[1]
	token := n.Record(t, bed.Display, old.Replica(7))
	pod := n.Sandbox(t, bed.Directx, "live-pods")

	t.Run("a driver that is replaced", func(t *testing.T) {
		id := "live-before"
		n.MustAllocate(t, pod, id, "app", token, old)
		renewed := old
		renewed.Store = bed.DriverStore + `\live0.inf_amd64_9999999999999999`
		renewed.Files = []bed.File{{Source: "nvcuda_new64.dll", Name: "nvcuda.dll"}, {Source: "nvnew32.dll", Name: "nvnew.dll", WOW64: true}}
		plug(renewed, other)
		n.Delete(t, id)
		id = "live-after"
		n.MustAllocate(t, pod, id, "app", token, renewed)
		n.Delete(t, id)
	})
	t.Run("a GPU that is removed", func(t *testing.T) {
		plug(other)
		id := "live-removed"
		n.MustRefuse(t, id, n.Allocated(t, pod, id, "app", token), `"app"`, bed.Display, old.InstanceID)
		id = "live-left"
		n.MustRun(t, bed.Directx, id, n.Visible(t, id, "all"))
		n.MustHave(t, id, other)
	})
}

// testUUIDs checks the UUIDs that NVIDIA's driver reports.
func testUUIDs(t *testing.T) {
	h := plugT4(t, 3)
	want := map[string]string{}
	places := map[string]string{}
	for i, d := range h.Devices[:2] { // The driver does not report the last.
		uuid := fmt.Sprintf("GPU-8932f937-d72c-4106-c12f-20bd9faed9f%d", i)
		want[d.InstanceID] = uuid
		places[fmt.Sprintf("00000000:%02X:%02X.0", *d.BusNumber, *d.Address>>16)] = uuid
	}
	for _, d := range machine.Identified(t, places) {
		if d.UUID != want[d.InstanceID] || d.Kind() != discovery.KindDisplay || !d.Health.OK() {
			t.Errorf("it is found as %+v, want UUID %q", d, want[d.InstanceID])
		}
	}
}
