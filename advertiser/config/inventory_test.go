package config

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// inventoryHead is the first three lines of an inventory.
const inventoryHead = "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices:\n"

// device is an inventory with one device, which has the lines; the first is line 5.
func device(lines ...string) string {
	return inventoryHead + "- instanceID: a\n  " + strings.Join(lines, "\n  ") + "\n"
}

func TestParseInventory(t *testing.T) {
	t.Parallel()
	const file = inventoryHead + `- instanceID: 'PCI\VEN_8086&DEV_56C0\3&11583659&0&10'
  description: "Intel® Data Center GPU Flex 170"
  locationPath: PCIROOT(0)#PCI(0100)#pci(00)
  luid: 0xC2F5
  uuid: GPU-8932f937-d72c-4106-c12f-20bd9faed9f6
  pciAddress: 0001:1b:02.3
  driver:
    version: 31.0
    storePath: c:/Windows/System32/DriverStore/FileRepository/iigd_dch.inf_amd64_1/
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
  vendorID: 0x10de
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
			{Source: "a.dll", Destination: "a.dll"}, {Source: `sub\b.dll`, Destination: "b.dll"},
			{Source: "c64.dll", Destination: `sub\c.dll`}, {Source: "d.dll", Destination: "d.dll"},
		},
		SysWOW64:    []discovery.RuntimeFile{{Source: "a.dll", Destination: "a.dll"}},
		DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg", ContainerPath: "/dev/dxg"}, {Path: "/dev/dri/renderD128", ContainerPath: "/dev/dri/renderD129"}},
		Libraries:   []discovery.Library{{Source: "/usr/lib/wsl/drivers", Destination: "/usr/lib/wsl/drivers"}, {Source: "/a.so", Destination: "/b.so"}},
	}, {
		InstanceID: `VMBUS\{5582}`, VendorID: pci.VendorNVIDIA, LUID: 1<<32 | 10, NUMANode: &zero, SupportsCompute: true,
	}}
	for name, text := range map[string]string{
		"plain": file, "carriage return": strings.ReplaceAll(file, "\n", "\r\n"), "byte order mark": "\uFEFF" + file, "document marks": "---\n" + file + "...\n",
	} {
		got, err := ParseInventory("inv.yaml", []byte(text))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestParseInventoryAccepts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text string
		want discovery.Device
	}{
		"vendor of the instance ID":       {inventoryHead + `- instanceID: 'pci\ven_1002&DEV_1'`, discovery.Device{InstanceID: `pci\ven_1002&DEV_1`, VendorID: pci.VendorAMD}},
		"malformed vendor":                {inventoryHead + `- instanceID: 'PCI\VEN_ZZZZ'`, discovery.Device{InstanceID: `PCI\VEN_ZZZZ`}},
		"single colons":                   {inventoryHead + `- instanceID: '0000:01:00.0'`, discovery.Device{InstanceID: `0000:01:00.0`}},
		"200 characters":                  {inventoryHead + "- instanceID: " + strings.Repeat("ä", 200), discovery.Device{InstanceID: strings.Repeat("ä", 200)}},
		"vendor in decimal":               {device("vendorID: 4318"), discovery.Device{InstanceID: "a", VendorID: pci.VendorNVIDIA}},
		"memory in Gi":                    {device("dedicatedMemory: 3Gi"), discovery.Device{InstanceID: "a", DedicatedMemory: 3 << 30}},
		"memory in Ki":                    {device("dedicatedMemory: 3Ki"), discovery.Device{InstanceID: "a", DedicatedMemory: 3 << 10}},
		"the most memory":                 {device("dedicatedMemory: 16777215Ti"), discovery.Device{InstanceID: "a", DedicatedMemory: 16777215 << 40}},
		"a version that looks like float": {device("driver: {version: 31.10}"), discovery.Device{InstanceID: "a", DriverVersion: "31.10"}},
		"ACPI location path":              {device("locationPath: ACPI(_SB_)#ACPI(PCI0)#ACPI(GFX0)"), discovery.Device{InstanceID: "a", LocationPath: "ACPI(_SB_)#ACPI(PCI0)#ACPI(GFX0)"}},
		"the largest LUID":                {device("luid: 0xffffffffffffffff"), discovery.Device{InstanceID: "a", LUID: math.MaxUint64}},
		"empty lists":                     {device("runtimeFiles: {system32: [], sysWOW64: []}", "linux: {deviceNodes: [], libraries: []}"), discovery.Device{InstanceID: "a"}},
	} {
		got, err := ParseInventory("inv.yaml", []byte(test.text))
		if diff := cmp.Diff([]discovery.Device{test.want}, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	if got, err := ParseInventory("inv.yaml", []byte(inventoryHead[:len(inventoryHead)-1]+" []\n")); err != nil || got == nil || len(got) != 0 {
		t.Errorf("no devices: %v, %v; want an empty list", got, err)
	}
	anchors := inventoryHead + `
- instanceID: a
  driver: &driver {storePath: 'C:\d'}
  runtimeFiles: &files {system32: [{source: &name x.dll, destination: *name}]}
- {instanceID: b, driver: *driver, runtimeFiles: *files}
`
	got, err := ParseInventory("inv.yaml", []byte(anchors))
	testutil.NoError(t, err)
	files := []discovery.RuntimeFile{{Source: "x.dll", Destination: "x.dll"}}
	want := []discovery.Device{{InstanceID: "a", DriverStorePath: `C:\d`, System32: files}, {InstanceID: "b", DriverStorePath: `C:\d`, System32: files}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("anchors (-want +got):\n%s", diff)
	}
	if &got[0].System32[0] == &got[1].System32[0] {
		t.Error("anchors: two GPUs share a list")
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
		"empty":               {"", ": the file is empty"},
		"not UTF-8":           {inventoryHead + "- instanceID: \xe4", "UTF-8"},
		"NUL of a torn write": {inventoryHead + "\x00\x00", "control characters"},
		"devices missing":     {strings.TrimSuffix(inventoryHead, "devices:\n"), "devices: missing: want a list"},
		"too many devices":    {inventoryHead + strings.Repeat("- {instanceID: a}\n", 1025), "devices: 1025 items: use 1024 or fewer"},
		"device is a string":  {inventoryHead + "- a\n", `:4: devices[0]: got "a", want a mapping with instanceID, description, `},
		"unknown key":         {device("Description: a"), `:5: devices[0]: unknown key "Description": want instanceID, description, `},
		"unknown key in file": {files("[{source: a, from: b}]"), `:6: devices[0].runtimeFiles.system32[0]: unknown key "from"`},
		"escape sequence":     {device(`description: "a\e[1m"`), ":5: devices[0].description: not a single line of text"},

		"no instance ID":        {inventoryHead + "- {display: true}\n", ":4: devices[0].instanceID: missing: want a string"},
		"separator":             {inventoryHead + "- instanceID: a::0\n", ":4: devices[0].instanceID: "},
		"white space":           {inventoryHead + "- instanceID: ' a'\n", "devices[0].instanceID"},
		"instance ID twice":     {inventoryHead + "- instanceID: Ää\n- instanceID: äÄ\n", ":5: devices[1].instanceID: the same as devices[0].instanceID"},
		"location path twice":   {two("locationPath", "PCI(0a)", "pci(0A)"), ":6: devices[1].locationPath: the same"},
		"LUID twice":            {two("luid", "0xA", "0x0_0xa"), "devices[1].luid: the same"},
		"UUID twice":            {two("uuid", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-8932F937-d72c-4106-c12f-20bd9faed9f6"), "devices[1].uuid: the same"},
		"PCI address twice":     {two("pciAddress", "'0000:1B:00.0'", "'0000:1b:00.0'"), "devices[1].pciAddress: the same"},
		"other vendor":          {inventoryHead + "- instanceID: 'PCI\\VEN_10DE&DEV_1'\n  vendorID: 0x1002\n", ":5: devices[0].vendorID: 0x1002 is not the vendor in the instance ID, 0x10DE"},
		"vendor without its 0x": {device("vendorID: 8086"), "devices[0].vendorID"},

		"location path not hex":   {device("locationPath: PCIROOT(0)#PCI(1G00)"), "devices[0].locationPath"},
		"LUID in decimal":         {device("luid: 49909"), "devices[0].luid"},
		"LUID 0":                  {device("luid: 0x00000000_0x00000000"), "devices[0].luid"},
		"UUID of another form":    {device("uuid: GPU-1"), "devices[0].uuid"},
		"PCI device too large":    {device("pciAddress: '0000:1B:20.0'"), "devices[0].pciAddress"},
		"store path relative":     {device("driver: {storePath: 'Windows\\x'}"), "devices[0].driver.storePath"},
		"store path is a drive":   {device("driver: {storePath: 'C:\\'}"), "devices[0].driver.storePath"},
		"negative memory":         {device("dedicatedMemory: -1"), "devices[0].dedicatedMemory"},
		"memory with two units":   {device("dedicatedMemory: 1GiKi"), "devices[0].dedicatedMemory"},
		"memory in fractions":     {device("dedicatedMemory: 1.5Gi"), "devices[0].dedicatedMemory"},
		"memory beyond 64 bits":   {device("dedicatedMemory: 17179869184Gi"), "devices[0].dedicatedMemory"},
		"negative NUMA node":      {device("numaNode: -1"), ":5: devices[0].numaNode: -1 is out of range"},
		"health without a reason": {device("health: {}"), "devices[0].health.reason: missing: want a string"},

		"files without a store path": {device("runtimeFiles: {sysWOW64: [a.dll]}"), ":5: devices[0].runtimeFiles: driver.storePath is missing"},
		"destination twice":          {files("[nvcuda.dll, {source: x.dll, destination: NVCUDA.DLL}]"), ":6: devices[0].runtimeFiles.system32[1]: the same as devices[0].runtimeFiles.system32[0]"},
		"absolute source":            {files(`['C:\x.dll']`), ":6: devices[0].runtimeFiles.system32[0]"},
		"source above":               {files(`['..\x.dll']`), "system32[0]"},
		"a stream":                   {files("[{source: 'a:b'}]"), "system32[0]"},
		"the directory itself":       {files("[.]"), "system32[0]"},
		"the root":                   {device("linux: {deviceNodes: [/]}"), "deviceNodes[0]"},
		"a dot at the end":           {files("[{source: a, destination: 'a.dll.'}]"), "system32[0].destination"},
		"destination above":          {files("[{source: a, destination: '../a'}]"), "system32[0].destination"},
		"too many files":             {files("[" + strings.Repeat("a,", 513) + "]"), "system32: 513 items: use 512 or fewer"},
		"relative node":              {device("linux: {deviceNodes: [dev/dxg]}"), ":5: devices[0].linux.deviceNodes[0]"},
		"node with a library's keys": {device("linux: {deviceNodes: [{source: /a}]}"), "deviceNodes[0].path: missing: want a string"},
		"container path twice": {device("linux:", "  deviceNodes: [/a]", "  libraries: [{source: /b, destination: /a}]"),
			":7: devices[0].linux.libraries[0]: the same as devices[0].linux.deviceNodes[0]"},
	} {
		devices, err := ParseInventory("inv.yaml", []byte(test.text))
		testutil.CheckError(t, name, err, test.says)
		if problems := (KeyErrors)(nil); !errors.As(err, &problems) || !strings.HasPrefix(err.Error(), "inv.yaml") {
			t.Errorf("%s: %v does not name the file and the keys", name, err)
		}
		if devices != nil {
			t.Errorf("%s: got %v", name, devices)
		}
	}
}

// TestAliasesAreBounded multiplies a small file by aliases.
func TestAliasesAreBounded(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(inventoryHead + "- instanceID: '0'\n  driver: &d {storePath: 'C:\\d'}\n  runtimeFiles: &f\n    system32: [")
	for i := range 512 {
		fmt.Fprintf(&b, "f%d,", i)
	}
	b.WriteString("]\n")
	for i := 1; i < 1024; i++ {
		fmt.Fprintf(&b, "- {instanceID: '%d', driver: *d, runtimeFiles: *f}\n", i)
	}
	_, err := ParseInventory("inv.yaml", []byte(b.String()))
	testutil.CheckError(t, "many aliases", err, "excessive aliasing")
}

func FuzzParseInventory(f *testing.F) {
	for _, seed := range []string{
		"", inventoryHead, device("display: true"), device("driver: {version: 31.0, storePath: 'C:\\d'}", "runtimeFiles: {system32: [a.dll, {source: b, destination: c}]}"),
		device("linux: {deviceNodes: [/dev/dxg], libraries: [{source: /a, destination: /b}]}"),
		device("luid: 0x1_0x2", "uuid: GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "pciAddress: '0000:1B:00.0'"),
		inventoryHead + "- &a {instanceID: a}\n- *a\n", inventoryHead + "- {instanceID: a, <<: {display: true}}\n", device("locationPath: PCIROOT(0)#PCI(1B00)", "numaNode: 3", "health: {reason: x}"),
	} {
		f.Add([]byte(seed))
	}
	schema := readSchema(f, "inventory.schema.json")
	f.Fuzz(func(t *testing.T, data []byte) {
		devices, err := ParseInventory("inv.yaml", data)
		if err != nil {
			if devices != nil || err.Error() == "" {
				t.Fatalf("devices %v, error %v", devices, err)
			}
			return
		}
		d, err := parse("inv.yaml", data, maxInventory)
		testutil.NoError(t, err)
		if err := schema.Validate(content(d.root)); err != nil && !oldBooleans.Match(data) {
			t.Fatalf("the schema refuses it: %v", err)
		}
		stateDir := t.TempDir()
		testutil.NoError(t, node.CompiledInventory(stateDir).Write(devices))
		for _, d := range devices {
			found, err := node.CompiledInventory(stateDir).Find(t.Context(), []string{d.InstanceID})
			if err != nil || !cmp.Equal(found, []discovery.Device{d}) {
				t.Fatalf("%q: %v\n%s", d.InstanceID, err, cmp.Diff([]discovery.Device{d}, found))
			}
		}
	})
}
