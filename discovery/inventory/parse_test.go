package inventory

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"directx-nri/discovery"

	"github.com/google/go-cmp/cmp"
)

// head is the first three lines of a file; what is appended begins in line 4.
const head = "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices:\n"

// device puts lines into a device of their own: the first of them is line 5.
func device(lines ...string) string {
	return head + "- instanceID: a\n" + indent(lines)
}

func indent(lines []string) string {
	var b strings.Builder
	for _, line := range lines {
		b.WriteString("  " + line + "\n")
	}
	return b.String()
}

func TestParseEverything(t *testing.T) {
	t.Parallel()
	const file = head + `- instanceID: 'PCI\VEN_8086&DEV_56C0\3&11583659&0&10'
  description: "Intel® Data Center GPU Flex 170"
  locationPath: PCIROOT(0)#PCI(0100)#pci(00)
  luid: 0xC2F5
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
	one, zero := 1, 0
	want := []discovery.Device{{
		InstanceID: `PCI\VEN_8086&DEV_56C0\3&11583659&0&10`, Description: "Intel® Data Center GPU Flex 170", VendorID: discovery.VendorIntel,
		LocationPath: "PCIROOT(0)#PCI(0100)#pci(00)", LUID: 0xC2F5,
		DriverVersion: "31.0", DriverStorePath: `C:\Windows\System32\DriverStore\FileRepository\iigd_dch.inf_amd64_1`,
		DedicatedMemory: 16106127360, NUMANode: &one, Integrated: true, Detachable: true, SupportsDisplay: true, SupportsCompute: true,
		Health:      discovery.Health{Reason: "driver is not started (code 10)"},
		System32:    []discovery.RuntimeFile{{Source: "a.dll", Destination: "a.dll"}, {Source: `sub\b.dll`, Destination: "b.dll"}, {Source: "c64.dll", Destination: `sub\c.dll`}, {Source: "d.dll", Destination: "d.dll"}},
		SysWOW64:    []discovery.RuntimeFile{{Source: "a.dll", Destination: "a.dll"}},
		DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg", ContainerPath: "/dev/dxg"}, {Path: "/dev/dri/renderD128", ContainerPath: "/dev/dri/renderD129"}},
		Libraries:   []discovery.Library{{Source: "/usr/lib/wsl/drivers", Destination: "/usr/lib/wsl/drivers"}, {Source: "/a.so", Destination: "/b.so"}},
	}, {
		InstanceID: `VMBUS\{5582}`, VendorID: discovery.VendorNVIDIA, LUID: 1<<32 | 10, NUMANode: &zero, SupportsCompute: true,
	}}
	for name, text := range map[string]string{
		"plain":           file,
		"carriage return": strings.ReplaceAll(file, "\n", "\r\n"),
		"byte order mark": "\uFEFF" + file,
		"document marks":  "---\n" + file + "...\n",
	} {
		got, err := Parse("inv.yaml", []byte(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: devices differ (-want +got):\n%s", name, diff)
		}
	}
}

func TestParseAccepts(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, file string
		want       discovery.Device
	}{
		{"vendor from the instance ID, any case", head + `- instanceID: 'pci\ven_1002&DEV_1'`, discovery.Device{InstanceID: `pci\ven_1002&DEV_1`, VendorID: discovery.VendorAMD}},
		{"instance ID with a malformed vendor", head + `- instanceID: 'PCI\VEN_ZZZZ'`, discovery.Device{InstanceID: `PCI\VEN_ZZZZ`}},
		{"single colons in an instance ID", head + `- instanceID: '0000:01:00.0'`, discovery.Device{InstanceID: `0000:01:00.0`}},
		{"an instance ID of 200 characters", head + "- instanceID: " + strings.Repeat("ä", 200), discovery.Device{InstanceID: strings.Repeat("ä", 200)}},
		{"vendor twice, the same", head + "- instanceID: 'PCI\\VEN_10DE&DEV_1'\n  vendorID: 0x10de", discovery.Device{InstanceID: `PCI\VEN_10DE&DEV_1`, VendorID: discovery.VendorNVIDIA}},
		{"vendor in decimal", device("vendorID: 4318"), discovery.Device{InstanceID: "a", VendorID: discovery.VendorNVIDIA}},
		{"vendor in quotes", device("vendorID: '0x10DE'"), discovery.Device{InstanceID: "a", VendorID: discovery.VendorNVIDIA}},
		{"memory in Ki", device("dedicatedMemory: 3Ki"), discovery.Device{InstanceID: "a", DedicatedMemory: 3 << 10}},
		{"memory in Mi", device("dedicatedMemory: 3Mi"), discovery.Device{InstanceID: "a", DedicatedMemory: 3 << 20}},
		{"memory in Gi", device("dedicatedMemory: '3Gi'"), discovery.Device{InstanceID: "a", DedicatedMemory: 3 << 30}},
		{"most memory", device("dedicatedMemory: 18446744073709551615"), discovery.Device{InstanceID: "a", DedicatedMemory: math.MaxUint64}},
		{"version that YAML takes for a number", device("driver: {version: 31.10}"), discovery.Device{InstanceID: "a", DriverVersion: "31.10"}},
		{"ACPI location path", device("locationPath: ACPI(_SB_)#ACPI(PCI0)#ACPI(GFX0)"), discovery.Device{InstanceID: "a", LocationPath: "ACPI(_SB_)#ACPI(PCI0)#ACPI(GFX0)"}},
		{"LUID in one number", device("luid: 0xffffffffffffffff"), discovery.Device{InstanceID: "a", LUID: math.MaxUint64}},
		{"empty lists need no store path", device("runtimeFiles: {system32: [], sysWOW64: []}", "linux: {deviceNodes: [], libraries: []}"), discovery.Device{InstanceID: "a"}},
		{"explicit tags", head + "- instanceID: !!str 1\n  display: !!bool true", discovery.Device{InstanceID: "1", SupportsDisplay: true}},
	}
	for _, tc := range tests {
		got, err := Parse("inv.yaml", []byte(tc.file))
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if diff := cmp.Diff([]discovery.Device{tc.want}, got); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", tc.name, diff)
		}
	}
	for _, file := range []string{head[:len(head)-1] + " []\n", "{kind: Inventory, devices: [], apiVersion: directx.microsoft.com/v1alpha1}"} {
		if got, err := Parse("inv.yaml", []byte(file)); err != nil || got == nil || len(got) != 0 {
			t.Errorf("Parse(%q) = %v, %v; want an empty list", file, got, err)
		}
	}
}

// TestParseAnchors shares one value between two devices.
func TestParseAnchors(t *testing.T) {
	t.Parallel()
	got, err := Parse("inv.yaml", []byte(head+`
- instanceID: a
  driver: &driver {storePath: 'C:\d'}
  runtimeFiles: &files {system32: [{source: &name x.dll, destination: *name}]}
- instanceID: b
  driver: *driver
  runtimeFiles: *files
`))
	if err != nil {
		t.Fatal(err)
	}
	files := []discovery.RuntimeFile{{Source: "x.dll", Destination: "x.dll"}}
	want := []discovery.Device{
		{InstanceID: "a", DriverStorePath: `C:\d`, System32: files},
		{InstanceID: "b", DriverStorePath: `C:\d`, System32: files},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got[0].System32[0].Source = "changed"
	if got[1].System32[0].Source != "x.dll" {
		t.Error("devices share one list in memory")
	}
}

func TestParseProblems(t *testing.T) {
	t.Parallel()
	const (
		boolean  = "must be true or false, not "
		vendor   = "is not a PCI vendor ID; write 0x and 1 to 4 hexadecimal digits, as in 0x10DE, or leave the key out"
		luid     = "is not a LUID; write it as 0x00000000_0x0000C2F5 or 0xC2F5"
		memory   = "is not an amount of memory; write bytes, or a whole number with Ki, Mi, Gi or Ti, less than 2^64 bytes in all"
		version  = "is not a driver version; write 1 to 4 numbers up to 65535 joined by dots, such as 31.0.15.5222"
		location = "is not a location path element; write NAME(number) elements joined by '#', such as PCIROOT(0)#PCI(1B00)"
		numa     = "is not a NUMA node; write a number from 0 to 65535, or leave the key out when the node is not known"
		store    = `is not an absolute Windows path of a folder; write it with its drive, such as C:\Windows\System32\DriverStore\FileRepository\nv_dispi.inf_amd64_0123456789abcdef`
		local    = `is not a file below a folder; write a relative Windows path such as nvcuda64.dll, without drive, "..", ":" or wildcards`
		empty    = `the file is empty; a node without devices is written with apiVersion, kind and "devices: []"`
		foreign  = "there are bytes that are not UTF-8 text; save the file as UTF-8 (without NUL and other control characters)"
		keys     = "instanceID, description, vendorID, locationPath, luid, uuid, pciAddress, driver, dedicatedMemory, numaNode, integrated, detachable, display, compute, health, runtimeFiles and linux"
		reason   = "say what is wrong with the device, or leave health out when nothing is"
		driver   = "driver: {storePath: 'C:\\d'}"
	)
	tests := []struct {
		name, file string
		want       []string // without "inv.yaml:"
	}{
		// The file.
		{"empty", "", []string{"1: " + empty}},
		{"blank", "\n\n", []string{"1: " + empty}},
		{"comments only", "# nothing\n", []string{"1: " + empty}},
		{"document mark only", "---\n", []string{"1: " + empty}},
		{"too large", strings.Repeat("#", maxFileSize+1), []string{"1: the file has 4194305 bytes; at most 4194304 are allowed"}},
		{"UTF-16", "\xff\xfea\x00", []string{"1: " + foreign}},
		{"not UTF-8", head + "- instanceID: \xe4", []string{"4: " + foreign}},
		{"NUL bytes of a torn write", head + "\x00\x00", []string{"4: " + foreign}},
		{"bad indentation", head + "- instanceID: a\n description: b\n", []string{"4: the YAML that begins here cannot be read: did not find expected key; correct the line or one soon below it"}},
		{"tab", head + "- instanceID: a\n\tdisplay: true", []string{"4: the YAML that begins here cannot be read: found a tab character that violates indentation; correct the line or one soon below it"}},
		{"unclosed quote", head + "- instanceID: 'a\n", []string{"4: the YAML that begins here cannot be read: found unexpected end of stream; correct the line or one soon below it"}},
		{"unknown anchor", head + "- instanceID: a\n  driver: *nothing\n", []string{"5: the YAML that begins here cannot be read: unknown anchor 'nothing' referenced; correct the line or one soon below it"}},
		{"two documents", head[:len(head)-1] + " []\n---\n" + head, []string{"4: there is a second YAML document; put all devices into one"}},
		{"broken second document", head[:len(head)-1] + " []\n---\n'", []string{"5: the YAML that begins here cannot be read: found unexpected end of stream; correct the line or one soon below it"}},

		// The head.
		{"a list", "- a\n", []string{"1: must be a mapping with apiVersion, kind and devices, not a list"}},
		{"a text", "a\n", []string{`1: must be a mapping with apiVersion, kind and devices, not the string "a"`}},
		{"head missing", "devices: []\n", []string{`1: apiVersion is missing; write "apiVersion: directx.microsoft.com/v1alpha1"`, `1: kind is missing; write "kind: Inventory"`}},
		{"another version and kind", "apiVersion: directx.microsoft.com/v2\nkind: 1\nnew: {}\n", []string{
			`1: apiVersion: the string "directx.microsoft.com/v2" is not known; write directx.microsoft.com/v1alpha1`,
			"2: kind: the number 1 is not known; write Inventory"}},
		{"devices missing", strings.TrimSuffix(head, "devices:\n"), []string{`1: devices is missing; write "devices: []" for a node without any`}},
		{"devices null", head, []string{"3: devices: must be a list, not nothing (null); an empty one is written []"}},
		{"devices a mapping", head[:len(head)-1] + " {a: b}", []string{"3: devices: must be a list, not a mapping; an empty one is written []"}},
		{"unknown key on top", "kind: Inventory\nDevices: []\nextra: 1\n" + "apiVersion: " + APIVersion + "\ndevices: []", []string{
			`2: the key "Devices" is not known; write it devices`, `3: the key "extra" is not known; allowed are apiVersion, kind and devices`}},
		{"too many devices", head + strings.Repeat("- {}\n", 1025), []string{"4: devices: has 1025 entries; at most 1024 are allowed"}},

		// Keys and types.
		{"device is a string", head + "- a\n", []string{"4: devices[0]: must be a mapping with " + keys + `, not the string "a"`}},
		{"device null", head + "- a: 1\n-\n", []string{
			`4: devices[0]: the key "a" is not known; allowed are ` + keys,
			"4: devices[0]: instanceID is missing; every device needs one, such as 'PCI\\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\\4&1CFCA9AB&0&00D8'",
			"5: devices[1]: must be a mapping with " + keys + ", not nothing (null)"}},
		{"duplicate key", device("display: true", "compute: true", "display: false"), []string{"7: devices[0].display: is there twice, first in line 5; remove one"}},
		{"merge key", head + "- &a {instanceID: a}\n- <<: *a\n  instanceID: b\n", []string{"5: devices[1]: merge keys (<<) are not allowed; give each value an anchor and an alias of its own, or write it out"}},
		{"key is a list", device("? [a]", ": b"), []string{"5: devices[0]: a key is not a plain name; allowed are " + keys}},
		{"key is a number", device("1: b"), []string{`5: devices[0]: the key "1" is not known; allowed are ` + keys}},
		{"yes", device("display: yes"), []string{"5: devices[0].display: " + boolean + `the string "yes"`}},
		{"True", device("display: True"), []string{"5: devices[0].display: " + boolean + "True"}},
		{"1", device("compute: 1"), []string{"5: devices[0].compute: " + boolean + "the number 1"}},
		{"quoted true", device("integrated: 'true'"), []string{"5: devices[0].integrated: " + boolean + `the string "true"`}},
		{"null boolean", device("detachable:"), []string{"5: devices[0].detachable: " + boolean + "nothing (null)"}},
		{"foreign tag", device("display: !on true"), []string{"5: devices[0].display: " + boolean + `"true" with the tag !on`}},
		{"tagged boolean", device("display: !!bool maybe"), []string{"5: devices[0].display: " + boolean + "maybe"}},
		{"binary", device("description: !!binary aGk="), []string{`5: devices[0].description: must be a string, not "aGk=" with the tag !!binary; quote it if it is one`}},
		{"tagged mapping", device("driver: !x {version: 1}"), []string{"5: devices[0].driver: must be a mapping with version and storePath, not a mapping"}},
		{"number for a string", device("description: 2080"), []string{"5: devices[0].description: must be a string, not the number 2080; quote it if it is one"}},
		{"null for a string", device("description:"), []string{"5: devices[0].description: must be a string, not nothing (null); quote it if it is one"}},
		{"long description", device("description: " + strings.Repeat("x", 257)), []string{"5: devices[0].description: has 257 characters; at most 256 are allowed"}},
		{"description of two lines", device("description: |", "  a", "  b"), []string{`5: devices[0].description: "a\nb\n" has a line break or a control character; write one line of text`}},
		{"escape sequence", device(`description: "a\e[1m"`), []string{`5: devices[0].description: "a\x1b[1m" has a line break or a control character; write one line of text`}},

		// Identity.
		{"instance ID empty", head + "- instanceID: ''\n", []string{"4: devices[0].instanceID: is empty; write a value or leave the key out"}},
		{"instance ID a number", head + "- instanceID: 7\n", []string{"4: devices[0].instanceID: must be a string, not the number 7; quote it if it is one"}},
		{"instance ID long", head + "- instanceID: " + strings.Repeat("x", 201), []string{"4: devices[0].instanceID: has 201 characters; at most 200 are allowed"}},
		{"instance ID with the separator", head + "- instanceID: a::0\n", []string{`4: devices[0].instanceID: contains "::" or ends with ":"; replica IDs use "::" as their separator, so name the device without it`}},
		{"instance ID ends with half of it", head + "- instanceID: 'a:'\n", []string{`4: devices[0].instanceID: contains "::" or ends with ":"; replica IDs use "::" as their separator, so name the device without it`}},
		{"instance ID with spaces", head + "- instanceID: ' a'\n", []string{"4: devices[0].instanceID: begins or ends with white space; remove it"}},
		{"instance ID twice", head + "- instanceID: abc\n- instanceID: x\n- instanceID: ABC\n", []string{"6: devices[2].instanceID: is the same as devices[0].instanceID in line 4; it must be unique"}},
		{"location path twice", head + "- {instanceID: a, locationPath: PCI(1b)}\n- {instanceID: b, locationPath: PCI(1B)}\n", []string{"5: devices[1].locationPath: is the same as devices[0].locationPath in line 4; it must be unique"}},
		{"LUID twice", head + "- {instanceID: a, luid: 0x1}\n- {instanceID: b, luid: 0x0_0x1}\n", []string{"5: devices[1].luid: is the same as devices[0].luid in line 4; it must be unique"}},
		{"vendor differs", head + "- instanceID: 'PCI\\VEN_10DE&DEV_1'\n  vendorID: 0x1002\n", []string{"5: devices[0].vendorID: 0x1002 differs from the vendor in the instance ID, 0x10DE; write that or leave the key out"}},
		{"vendor without its 0x", device("vendorID: 8086"), []string{`5: devices[0].vendorID: "8086" ` + vendor}},
		{"vendor too great in decimal", device("vendorID: 65536"), []string{`5: devices[0].vendorID: "65536" ` + vendor}},
		{"vendor below 0", device("vendorID: -1"), []string{`5: devices[0].vendorID: "-1" ` + vendor}},
		{"vendor that is no whole number", device("vendorID: 4318.0"), []string{`5: devices[0].vendorID: "4318.0" ` + vendor}},
		{"vendor in a list", device("vendorID: [0x10DE]"), []string{"5: devices[0].vendorID: must be a number or a string, not a list"}},
		{"vendor too long", device("vendorID: 0x110DE"), []string{`5: devices[0].vendorID: "0x110DE" ` + vendor}},
		{"vendor 0", device("vendorID: 0x0"), []string{`5: devices[0].vendorID: "0x0" ` + vendor}},
		{"vendor name", device("vendorID: NVIDIA"), []string{`5: devices[0].vendorID: "NVIDIA" ` + vendor}},

		// Single values.
		{"location path of one word", device("locationPath: PCIROOT"), []string{`5: devices[0].locationPath: "PCIROOT" ` + location}},
		{"location path not hexadecimal", device("locationPath: PCIROOT(0)#PCI(1G00)"), []string{`5: devices[0].locationPath: "PCI(1G00)" ` + location}},
		{"location path with an empty element", device("locationPath: PCIROOT(0)##PCI(1B00)"), []string{`5: devices[0].locationPath: "" ` + location}},
		{"location path with more behind", device("locationPath: PCIROOT(0) PCI(1)"), []string{`5: devices[0].locationPath: "PCIROOT(0) PCI(1)" ` + location}},
		{"location path empty", device("locationPath: ''"), []string{"5: devices[0].locationPath: is empty; write a value or leave the key out"}},
		{"location path long", device("locationPath: PCI(" + strings.Repeat("1", 256) + ")"), []string{"5: devices[0].locationPath: has 261 characters; at most 256 are allowed"}},
		{"LUID in decimal", device("luid: 49909"), []string{`5: devices[0].luid: "49909" ` + luid}},
		{"LUID of three parts", device("luid: 0x1_0x2_0x3"), []string{`5: devices[0].luid: "0x1_0x2_0x3" ` + luid}},
		{"LUID part too long", device("luid: 0x0_0x100000000"), []string{`5: devices[0].luid: "0x0_0x100000000" ` + luid}},
		{"LUID 0", device("luid: 0x00000000_0x00000000"), []string{"5: devices[0].luid: is 0, which no adapter has; leave the key out"}},
		{"LUID true", device("luid: true"), []string{"5: devices[0].luid: must be a number or a string, not true"}},
		{"version of five parts", device("driver: {version: 1.2.3.4.5}"), []string{`5: devices[0].driver.version: "1.2.3.4.5" ` + version}},
		{"version with a word", device("driver: {version: 31.0-beta}"), []string{`5: devices[0].driver.version: "31.0-beta" ` + version}},
		{"version with a sign", device("driver: {version: -1}"), []string{`5: devices[0].driver.version: "-1" ` + version}},
		{"version as an exponent", device("driver: {version: 1e3}"), []string{`5: devices[0].driver.version: "1e3" ` + version}},
		{"version part too large", device("driver: {version: 1.65536}"), []string{`5: devices[0].driver.version: "1.65536" ` + version}},
		{"unknown key in driver", device("driver:", "  Version: 1"), []string{`6: devices[0].driver: the key "Version" is not known; write it version`}},
		{"store path relative", device("driver: {storePath: 'Windows\\x'}"), []string{`5: devices[0].driver.storePath: "Windows\\x" ` + store}},
		{"store path of the current drive", device("driver: {storePath: '\\Windows'}"), []string{`5: devices[0].driver.storePath: "\\Windows" ` + store}},
		{"store path of Linux", device("driver: {storePath: /usr/lib}"), []string{`5: devices[0].driver.storePath: "/usr/lib" ` + store}},
		{"store path is a drive", device("driver: {storePath: 'C:\\'}"), []string{`5: devices[0].driver.storePath: "C:\\" ` + store}},
		{"store path on a share", device("driver: {storePath: '\\\\s\\h\\x'}"), []string{`5: devices[0].driver.storePath: "\\\\s\\h\\x" ` + store}},
		{"store path with a wildcard", device("driver: {storePath: 'C:\\nv_*'}"), []string{`5: devices[0].driver.storePath: "C:\\nv_*" ` + store}},
		{"memory in G", device("dedicatedMemory: 16G"), []string{`5: devices[0].dedicatedMemory: "16G" ` + memory}},
		{"memory negative", device("dedicatedMemory: -1"), []string{`5: devices[0].dedicatedMemory: "-1" ` + memory}},
		{"memory octal", device("dedicatedMemory: 010"), []string{`5: devices[0].dedicatedMemory: "010" ` + memory}},
		{"memory with a separator", device("dedicatedMemory: 1_000"), []string{`5: devices[0].dedicatedMemory: "1_000" ` + memory}},
		{"memory broken", device("dedicatedMemory: 1.5Gi"), []string{`5: devices[0].dedicatedMemory: "1.5Gi" ` + memory}},
		{"memory beyond 64 bits", device("dedicatedMemory: 17179869184Gi"), []string{`5: devices[0].dedicatedMemory: "17179869184Gi" ` + memory}},
		{"memory null", device("dedicatedMemory:"), []string{"5: devices[0].dedicatedMemory: must be a number or a string, not nothing (null)"}},
		{"NUMA node negative", device("numaNode: -1"), []string{`5: devices[0].numaNode: "-1" ` + numa}},
		{"NUMA node large", device("numaNode: 65536"), []string{`5: devices[0].numaNode: "65536" ` + numa}},
		{"NUMA node broken", device("numaNode: 0.5"), []string{"5: devices[0].numaNode: must be a whole number without quotes, not the number 0.5"}},
		{"NUMA node quoted", device("numaNode: '0'"), []string{`5: devices[0].numaNode: must be a whole number without quotes, not the string "0"`}},
		{"health empty", device("health: {}"), []string{"5: devices[0].health: reason is missing; " + reason}},
		{"health with an empty reason", device("health: {reason: ' '}"), []string{"5: devices[0].health.reason: is empty; " + reason}},
		{"health a string", device("health: bad"), []string{`5: devices[0].health: must be a mapping with reason, not the string "bad"`}},
		{"health of two lines", device(`health: {reason: "a\nb"}`), []string{`5: devices[0].health.reason: "a\nb" has a line break or a control character; write one line of text`}},
		{"health long", device("health: {reason: " + strings.Repeat("x", 257) + "}"), []string{"5: devices[0].health.reason: has 257 characters; at most 256 are allowed"}},

		// Files.
		{"runtime files without a store path", device("driver: {version: 1}", "runtimeFiles: {system32: [a.dll]}"), []string{"6: devices[0].runtimeFiles: needs driver.storePath, the folder that the sources are relative to; add it"}},
		{"runtime files without a driver", device("runtimeFiles: {sysWOW64: [a.dll]}"), []string{"5: devices[0].runtimeFiles: needs driver.storePath, the folder that the sources are relative to; add it"}},
		{"runtime files a list", device(driver, "runtimeFiles: [a.dll]"), []string{"6: devices[0].runtimeFiles: must be a mapping with system32 and sysWOW64, not a list"}},
		{"runtime files in the wrong case", device(driver, "runtimeFiles: {sysWow64: []}"), []string{`6: devices[0].runtimeFiles: the key "sysWow64" is not known; write it sysWOW64`}},
		{"list is a string", device(driver, "runtimeFiles: {system32: a.dll}"), []string{`6: devices[0].runtimeFiles.system32: must be a list, not the string "a.dll"; an empty one is written []`}},
		{"destination twice", device(driver, "runtimeFiles:", "  system32:", "  - nvcuda.dll", "  - {source: x.dll, destination: NVCUDA.DLL}"), []string{
			"9: devices[0].runtimeFiles.system32[1].destination: is the same as devices[0].runtimeFiles.system32[0] in line 8; it must be unique"}},
		{"destination twice by the source's name", device(driver, "runtimeFiles: {system32: ['a\\x.dll', 'b\\x.dll']}"), []string{
			"6: devices[0].runtimeFiles.system32[1]: is the same as devices[0].runtimeFiles.system32[0] in line 6; it must be unique"}},
		{"source absolute", device(driver, "runtimeFiles: {system32: ['C:\\x.dll']}"), []string{`6: devices[0].runtimeFiles.system32[0]: "C:\\x.dll" ` + local}},
		{"source above", device(driver, "runtimeFiles: {system32: ['..\\x.dll']}"), []string{`6: devices[0].runtimeFiles.system32[0]: "..\\x.dll" ` + local}},
		{"source a stream", device(driver, "runtimeFiles: {system32: [{source: 'a:b'}]}"), []string{`6: devices[0].runtimeFiles.system32[0].source: "a:b" ` + local}},
		{"source the folder", device(driver, "runtimeFiles: {system32: [.]}"), []string{`6: devices[0].runtimeFiles.system32[0]: "." ` + local}},
		{"destination above", device(driver, "runtimeFiles: {system32: [{source: a, destination: '../a'}]}"), []string{`6: devices[0].runtimeFiles.system32[0].destination: "../a" ` + local}},
		{"destination with a dot at its end", device(driver, "runtimeFiles: {system32: [{source: a, destination: 'a.dll.'}]}"), []string{`6: devices[0].runtimeFiles.system32[0].destination: "a.dll." ends with a dot or a space, which Windows drops; remove it`}},
		{"source missing", device(driver, "runtimeFiles: {system32: [{destination: a}]}"), []string{"6: devices[0].runtimeFiles.system32[0]: source is missing; write {source: …, destination: …}"}},
		{"source empty", device(driver, "runtimeFiles: {system32: ['']}"), []string{"6: devices[0].runtimeFiles.system32[0]: is empty; write a value or leave the key out"}},
		{"entry a number", device(driver, "runtimeFiles: {system32: [1]}"), []string{"6: devices[0].runtimeFiles.system32[0]: must be a string or a mapping with source and destination, not the number 1"}},
		{"entry a list", device(driver, "runtimeFiles: {system32: [[a, b]]}"), []string{"6: devices[0].runtimeFiles.system32[0]: must be a string or a mapping with source and destination, not a list"}},
		{"too many files", device(driver, "runtimeFiles: {system32: ["+strings.Repeat("a,", 513)+"]}"), []string{"6: devices[0].runtimeFiles.system32: has 513 entries; at most 512 are allowed"}},
		{"node relative", device("linux: {deviceNodes: [dev/dxg]}"), []string{`5: devices[0].linux.deviceNodes[0]: "dev/dxg" is not an absolute path; begin it with /`}},
		{"node not clean", device("linux: {deviceNodes: [/dev/../dxg]}"), []string{`5: devices[0].linux.deviceNodes[0]: "/dev/../dxg" is not a clean path; write "/dxg"`}},
		{"node is the root", device("linux: {deviceNodes: [/]}"), []string{"5: devices[0].linux.deviceNodes[0]: is the root folder; name a file or a folder in it"}},
		{"container path not clean", device("linux: {deviceNodes: [{path: /dev/dxg, containerPath: /dev/dxg/}]}"), []string{`5: devices[0].linux.deviceNodes[0].containerPath: "/dev/dxg/" is not a clean path; write "/dev/dxg"`}},
		{"node with the keys of a library", device("linux: {deviceNodes: [{source: /a}]}"), []string{
			"5: devices[0].linux.deviceNodes[0]: the key \"source\" is not known; allowed are path and containerPath",
			"5: devices[0].linux.deviceNodes[0]: path is missing; write {path: …, containerPath: …}"}},
		{"container path twice", device("linux:", "  deviceNodes: [/a]", "  libraries: [{source: /b, destination: /a}]"), []string{
			"7: devices[0].linux.libraries[0].destination: is the same as devices[0].linux.deviceNodes[0] in line 6; it must be unique"}},
		{"library path long", device("linux: {libraries: [/" + strings.Repeat("x", 4095) + "]}"), []string{"5: devices[0].linux.libraries[0]: has 4096 bytes; at most 4095 are allowed"}},
		{"linux null", device("linux:"), []string{"5: devices[0].linux: must be a mapping with deviceNodes and libraries, not nothing (null)"}},

		// All of them, in the order of lines.
		{"several", device("display: yes", "luid: 1", "numaNode: x") + "- display: 1\n", []string{
			"5: devices[0].display: " + boolean + `the string "yes"`,
			`6: devices[0].luid: "1" ` + luid,
			`7: devices[0].numaNode: must be a whole number without quotes, not the string "x"`,
			"8: devices[1]: instanceID is missing; every device needs one, such as 'PCI\\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\\4&1CFCA9AB&0&00D8'",
			"8: devices[1].display: " + boolean + "the number 1"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			devices, err := Parse("inv.yaml", []byte(tc.file))
			if err == nil {
				t.Fatalf("no error, devices %+v", devices)
			}
			if devices != nil {
				t.Errorf("devices %+v beside an error", devices)
			}
			want := "inv.yaml:" + strings.Join(tc.want, "\ninv.yaml:")
			if diff := cmp.Diff(want, err.Error()); diff != "" {
				t.Errorf("error differs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestParseAliasesInBounds multiplies a small file by aliases.
func TestParseAliasesInBounds(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(head + "- instanceID: '0'\n  driver: &d {storePath: 'C:\\d'}\n  runtimeFiles: &f\n    system32: [")
	for i := range maxFiles {
		fmt.Fprintf(&b, "f%d,", i)
	}
	b.WriteString("]\n")
	for i := 1; i < maxDevices; i++ {
		fmt.Fprintf(&b, "- {instanceID: '%d', driver: *d, runtimeFiles: *f}\n", i)
	}
	_, err := Parse("inv.yaml", []byte(b.String()))
	var problems Problems
	if !errors.As(err, &problems) || len(problems) != 1 {
		t.Fatalf("error %v, want one problem", err)
	}
	if want := "the file has more than 65536 values, aliases counted each time; remove some"; problems[0].Text != want {
		t.Errorf("text %q, want %q", problems[0].Text, want)
	}

	_, err = Parse("inv.yaml", []byte(head+"- &a\n  instanceID: a\n  runtimeFiles: {system32: [*a]}\n"))
	if err == nil {
		t.Error("a device that contains itself was accepted")
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	_, err := Parse("inv.yaml", []byte(head+strings.Repeat("- x\n", 60)))
	var problem Problem
	if !errors.As(err, &problem) || problem.Line != 4 || problem.Path != "devices[0]" || problem.File != "inv.yaml" {
		t.Errorf("first problem %+v", problem)
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 51 || lines[50] != "inv.yaml: and 10 more" {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
	}
}
