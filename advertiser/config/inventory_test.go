package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// inventoryHead is the first three lines of an inventory.
const inventoryHead = "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices:\n"

// device is an inventory with one device, which has the lines; the first is line 5.
func device(lines ...string) string {
	return inventoryHead + "- instanceID: a\n  " + strings.Join(lines, "\n  ") + "\n"
}

// guestPath is the location path of a GPU in a virtual machine of Azure or Hyper-V.
const guestPath = "ACPI(_SB_)#ACPI(VMOD)#ACPI(VMBS)#VMBUS({44c4f61d-4444-4400-9d52-802e27ede19f}#{711dad3a-73ce-468b-90a9-ede6906841b2})#PCI(0000)"

func TestParseInventory(t *testing.T) {
	t.Parallel()
	const file = inventoryHead + `- instanceID: 'PCI\VEN_8086&DEV_56C0\3&11583659&0&10'
  description: "Intel® Data Center GPU Flex 170"
  locationPath: PCIROOT(0)#PCI(0100)#pci(00)
  luid: 0x0_0xC2F5
  uuid: GPU-8932f937-d72c-4106-c12f-20bd9faed9f6
  pciAddress: 0001:1b:02.3
  driver:
    version: '31.0'
    storePath: C:\Windows\System32\DriverStore\FileRepository\iigd_dch.inf_amd64_1
  dedicatedMemory: 16106127360
  numaNode: 1
  integrated: true
  detachable: true
  display: true
  compute: true
  health: {reason: driver is not started (code 10)}
  runtimeFiles:
    system32: [a.dll, sub/b.dll, {source: c64.dll, destination: sub\c.dll}, {source: d.dll}]
    sysWOW64: [a.dll]
  linux:
    deviceNodes: [/dev/dxg, {path: /dev/dri/renderD128, containerPath: /dev/dri/renderD129}]
    libraries: [/usr/lib/wsl/drivers, {source: /a.so, destination: /b.so}]
- instanceID: 'VMBUS\{5582}'
  vendorID: nvidia
  luid: 0x00000001_0x0000000A
  numaNode: 0
  compute: true
`
	one, zero, bus, address := 1, 0, uint32(0x11B), uint32(0x20003)
	want := []discovery.Device{{
		InstanceID: `PCI\VEN_8086&DEV_56C0\3&11583659&0&10`, Description: "Intel® Data Center GPU Flex 170", VendorID: pci.VendorIntel,
		LocationPath: "PCIROOT(0)#PCI(0100)#pci(00)", LUID: 0xC2F5, UUID: "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", BusNumber: &bus, Address: &address,
		DriverVersion: "31.0", DriverStorePath: `C:\Windows\System32\DriverStore\FileRepository\iigd_dch.inf_amd64_1`,
		DedicatedMemory: 16106127360, NUMANode: &one, Integrated: true, Detachable: true, SupportsDisplay: true, SupportsCompute: true,
		Health: discovery.Health{Reason: "driver is not started (code 10)"},
		System32: []discovery.RuntimeFile{
			{Source: "a.dll", Destination: "a.dll"}, {Source: "sub/b.dll", Destination: "b.dll"},
			{Source: "c64.dll", Destination: `sub\c.dll`}, {Source: "d.dll", Destination: "d.dll"},
		},
		SysWOW64:    []discovery.RuntimeFile{{Source: "a.dll", Destination: "a.dll"}},
		DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg", ContainerPath: "/dev/dxg"}, {Path: "/dev/dri/renderD128", ContainerPath: "/dev/dri/renderD129"}},
		Libraries:   []discovery.Library{{Source: "/usr/lib/wsl/drivers", Destination: "/usr/lib/wsl/drivers"}, {Source: "/a.so", Destination: "/b.so"}},
	}, {
		InstanceID: `VMBUS\{5582}`, VendorID: pci.VendorNVIDIA, LUID: 1<<32 | 10, NUMANode: &zero, SupportsCompute: true,
	}}
	got, err := ParseInventory([]byte(file))
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestParseInventoryAccepts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text string
		want discovery.Device
	}{
		"vendor of the instance ID": {inventoryHead + `- instanceID: 'pci\ven_1002&DEV_1'`, discovery.Device{InstanceID: `pci\ven_1002&DEV_1`, VendorID: pci.VendorAMD}},
		"200 characters":            {inventoryHead + "- instanceID: " + strings.Repeat("ä", 200), discovery.Device{InstanceID: strings.Repeat("ä", 200)}},
		"the most memory":           {device("dedicatedMemory: 9999999Ti"), discovery.Device{InstanceID: "a", DedicatedMemory: 9999999 << 40}},
		"location path of a virtual machine": {
			device("locationPath: '" + guestPath + "'"), discovery.Device{InstanceID: "a", LocationPath: guestPath},
		},
		"ACPI location path": {device("locationPath: ACPI(_SB_)#ACPI(PCI0)#ACPI(GFX0)"), discovery.Device{InstanceID: "a", LocationPath: "ACPI(_SB_)#ACPI(PCI0)#ACPI(GFX0)"}},
	} {
		got, err := ParseInventory([]byte(test.text))
		if diff := cmp.Diff([]discovery.Device{test.want}, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	if got, err := ParseInventory([]byte(inventoryHead[:len(inventoryHead)-1] + " []\n")); err != nil || got == nil || len(got) != 0 {
		t.Errorf("no devices: %v, %v; want an empty list", got, err)
	}
	anchors := inventoryHead + "- {instanceID: a, linux: &linux {deviceNodes: [/dev/dxg]}}\n- {instanceID: b, linux: *linux}\n"
	nodes := []discovery.DeviceNode{{Path: "/dev/dxg", ContainerPath: "/dev/dxg"}}
	got, err := ParseInventory([]byte(anchors))
	if diff := cmp.Diff([]discovery.Device{{InstanceID: "a", DeviceNodes: nodes}, {InstanceID: "b", DeviceNodes: nodes}}, got); diff != "" || err != nil {
		t.Errorf("anchors: %v (-want +got):\n%s", err, diff)
	}
}

// The only NVIDIA GPU of a node has no UUID, because not all programs can parse it in CUDA_VISIBLE_DEVICES.
func TestInventoryUUIDs(t *testing.T) {
	t.Parallel()
	const gpu = "- instanceID: 'PCI\\VEN_10DE&DEV_2684\\%d'\n  uuid: GPU-52a3a85d-3c55-ca3a-a955-82c69ed360f%[1]d\n"
	for n := 1; n <= 2; n++ {
		text := inventoryHead + "- {instanceID: 'PCI\\VEN_8086&DEV_1\\0'}\n"
		for i := range n {
			text += fmt.Sprintf(gpu, i)
		}
		devices, err := ParseInventory([]byte(text))
		if err != nil || len(devices) != n+1 || (devices[n].UUID != "") != (n == 2) {
			t.Errorf("%d of NVIDIA: %+v, %v", n, devices, err)
		}
	}
}

func TestParseInventoryRefuses(t *testing.T) {
	t.Parallel()
	const driver = "driver: {storePath: 'C:\\d'}"
	files := func(list string) string { return device(driver, "runtimeFiles: {system32: "+list+"}") }
	two := func(key, a, b string) string {
		return device(key+": "+a) + "- {instanceID: b, " + key + ": " + b + "}\n"
	}
	for name, test := range map[string]struct{ text, says string }{
		"NUL of a torn write": {inventoryHead + "\x00\x00", "control characters"},
		"unknown key":         {device("Description: a"), "devices[0]: additional properties 'Description' not allowed"},
		"escape sequence":     {device(`description: "a\e[1m"`), "devices[0].description: not valid: want one line of text"},

		"instance ID twice":     {inventoryHead + "- instanceID: Ää\n- instanceID: äÄ\n", "devices[1].instanceID: the same as devices[0].instanceID"},
		"location path twice":   {two("locationPath", "PCI(0a)", "pci(0A)"), "devices[1].locationPath: the same"},
		"LUID twice":            {two("luid", "0x00_0xA", "0x0_0xa"), "devices[1].luid: the same"},
		"UUID twice":            {two("uuid", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-8932F937-d72c-4106-c12f-20bd9faed9f6"), "devices[1].uuid: the same"},
		"PCI address twice":     {two("pciAddress", "'0000:1B:00.0'", "'0000:1b:00.0'"), "devices[1].pciAddress: the same"},
		"vendor of the ID":      {inventoryHead + "- instanceID: 'PCI\\VEN_10DE&DEV_1'\n  vendorID: amd\n", "devices[0].vendorID: amd is not the vendor in the instance ID, nvidia"},
		"no location path":      {device("locationPath: 'VMBUS({44c4f61d}#PCI(0000)'"), "devices[0].locationPath: not valid: want a location path"},
		"location path not hex": {device("locationPath: PCIROOT(0)#PCI(1G00)"), "devices[0].locationPath"},
		"LUID as a number":      {device("luid: 49909"), "devices[0].luid: got number, want string"},
		"store path relative":   {device("driver: {storePath: 'Windows\\x'}"), "devices[0].driver.storePath"},
		"store path above":      {device("driver: {storePath: 'C:\\a\\..'}"), "devices[0].driver.storePath"},
		"memory beyond 64 bits": {device("dedicatedMemory: 17179869184Gi"), "devices[0].dedicatedMemory"},

		"files without a store path": {device("runtimeFiles: {sysWOW64: [a.dll]}"), "devices[0]: missing property 'driver'"},
		"destination twice":          {files("[nvcuda.dll, {source: x.dll, destination: NVCUDA.DLL}]"), "devices[0].runtimeFiles.system32[1]: the same as devices[0].runtimeFiles.system32[0]"},
		"source above":               {files(`['..\x.dll']`), "system32[0]"},
		"a wildcard":                 {files(`['*.dll']`), "system32[0]"},
		"node not clean":             {device("linux: {deviceNodes: [/dev/../dxg]}"), "devices[0].linux.deviceNodes[0]"},
		"node with a library's keys": {device("linux: {deviceNodes: [{source: /a}]}"), "deviceNodes[0]: missing property 'path'"},
		"container path twice": {device("linux:", "  deviceNodes: [/a]", "  libraries: [{source: /b, destination: /a}]"),
			"devices[0].linux.libraries[0]: the same as devices[0].linux.deviceNodes[0]"},
	} {
		devices, err := ParseInventory([]byte(test.text))
		testutil.CheckError(t, name, err, test.says)
		if devices != nil {
			t.Errorf("%s: got %v", name, devices)
		}
	}
}
