//go:build e2e && windows

package bed

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/directx-nri/directx-nri/discovery"
)

// Setup classes of the devices.
// https://learn.microsoft.com/windows-hardware/drivers/install/system-defined-device-setup-classes-available-to-vendors
const (
	displayClass = "{4d36e968-e325-11ce-bfc1-08002be10318}"
	computeClass = "{f01a9d53-3ff6-48d2-9f97-c8a7004be10c}"
)

// Results of CM_Get_DevNode_Status on Windows 10, and problem codes.
// https://learn.microsoft.com/windows/win32/api/cfgmgr32/nf-cfgmgr32-cm_get_devnode_status
const (
	// Running is a device that is started.
	Running = 0x0180200A
	// Stopped is a device with a problem.
	Stopped  = 0x01802400
	NoDriver = 28 // CM_PROB_FAILED_INSTALL
)

// Plug replaces the hardware of the prefix with GPUs and creates their drivers' files.
// Those that stay are changed in place. One without an instance ID is an adapter of DXCore
// alone, and one without a driver version has no driver.
func (m *Machine) Plug(t testing.TB, gpus ...GPU) {
	t.Helper()
	place(t, gpus)
	var adapters strings.Builder
	for _, g := range gpus {
		if g.Problem == 0 {
			adapters.WriteString(g.adapter())
		}
	}
	Replace(t, `C:\dxcore.txt`, []byte(adapters.String()))
	devices := slices.DeleteFunc(slices.Clone(gpus), func(g GPU) bool { return g.InstanceID == "" })
	Replace(t, `C:\devices.reg`, registryFile(devices))
	if _, err := m.Run("reg", "import", `C:\devices.reg`); err != nil {
		t.Fatalf("import the devices: %v", err)
	}
}

// adapter returns the GPU's line for the double of dxcore.dll (../doubles/dxcore.cpp).
func (g GPU) adapter() string {
	attributes, properties, unread := 0, 1, ^uint32(0)
	if g.SupportsDisplay {
		attributes |= 1 | 2
	}
	switch {
	case g.MachineLearningOnly:
		attributes |= 8
	case g.SupportsCompute:
		attributes |= 4
	}
	if g.Software {
		properties = 0
	}
	if g.Integrated {
		properties |= 2
	}
	if g.NoDirect3D12 {
		attributes = 1
	}
	if g.MemoryUnread {
		unread = 7 // DXCoreAdapterProperty::DedicatedAdapterMemory
	}
	return fmt.Sprintf("%x %x %x %x %x %s\n", uint64(g.LUID), attributes, properties, g.DedicatedMemory, unread, g.Description)
}

// class returns the GPU's setup class.
func (g GPU) class() string {
	if g.Kind() == discovery.KindCompute {
		return computeClass
	}
	return displayClass
}

// property is a device property: the format and number of its key, and its value.
type property struct {
	format string
	id     uint32
	value  any // see encode
}

// properties returns a GPU's properties. The formats of their keys are from devpkey.h of
// the Windows SDK, and for the LUID, which it lacks, what Windows' own tools read.
func (g GPU) properties(driver string) []property {
	const (
		device  = "{a45c254e-df1c-4efd-8020-67d146a850e0}"
		status  = "{4340a6c5-93fa-4706-972c-7b648008a5a7}"
		places  = "{540b947e-8b40-45bc-a8a2-6a0b894cbda2}"
		drivers = "{a8b865dd-2e3d-4094-ad97-e593a70c75d6}"
		gpu     = "{60b193cb-5276-4d0f-96fc-f173abad3ec6}"
	)
	properties := []property{
		{device, 2, g.Description},
		{device, 3, []string{g.InstanceID[:strings.LastIndex(g.InstanceID, `\`)]}}, // the hardware IDs
		{device, 37, []string{g.LocationPath, "ACPI(_SB_)#ACPI(PCI0)"}},
		{status, 2, cmp.Or(g.Status, uint32(Running))},
		{status, 3, g.Problem},
		{places, 5, true}, // It is present.
		{gpu, 2, uint64(g.LUID)},
	}
	if g.BusNumber != nil {
		properties = append(properties, property{device, 23, *g.BusNumber}, property{device, 30, *g.Address})
	}
	if g.NUMANode != nil {
		properties = append(properties, property{places, 3, uint32(*g.NUMANode)})
	}
	if g.DriverVersion != "" {
		properties = append(properties, property{device, 11, driver}, property{drivers, 3, g.DriverVersion}, property{drivers, 5, "oem12.inf"})
	}
	if g.Odd { // The last value is in force.
		properties = append(properties, property{device, 37, uint32(1)}, property{gpu, 2, []byte{1, 2, 3}})
	}
	return properties
}

// encode returns the type of a device property and its data. Bytes are a 64-bit number that
// is cut short.
// https://learn.microsoft.com/windows-hardware/drivers/install/property-data-type-identifiers
func encode(v any) (kind uint32, data []byte) {
	switch v := v.(type) {
	case string:
		return 0x12, wide(v + "\x00")
	case []string:
		return 0x2012, wide(strings.Join(v, "\x00") + "\x00\x00")
	case uint32:
		return 0x7, binary.LittleEndian.AppendUint32(nil, v)
	case uint64:
		return 0x9, binary.LittleEndian.AppendUint64(nil, v)
	case []byte:
		return 0x9, v
	default: // There is no other type than bool.
		return 0x11, []byte{0xff}
	}
}

// wide returns text in UTF-16.
func wide(text string) []byte {
	var data []byte
	for _, unit := range utf16.Encode([]rune(text)) {
		data = binary.LittleEndian.AppendUint16(data, unit)
	}
	return data
}

// registryFile returns a file for 'reg import' with the devices, in place of all others of
// the PCI bus, as Wine's setupapi.dll keeps them (create_device in dlls/setupapi/devinst.c).
func registryFile(devices []GPU) []byte {
	const system = `HKEY_LOCAL_MACHINE\System\CurrentControlSet\`
	var b strings.Builder
	value := func(key, name string, kind uint32, data []byte) {
		var bytes []string
		for _, c := range data {
			bytes = append(bytes, fmt.Sprintf("%02x", c))
		}
		fmt.Fprintf(&b, "\r\n[%s]\r\n%s=hex(%x):%s\r\n", key, name, kind, strings.Join(bytes, ","))
	}
	b.WriteString("\ufeffWindows Registry Editor Version 5.00\r\n")
	fmt.Fprintf(&b, "\r\n[-%sEnum\\PCI]\r\n", system)
	for i, g := range devices {
		key, driver := system+`Enum\`+g.InstanceID, fmt.Sprintf(`%s\%04d`, g.class(), 1000+i)
		fmt.Fprintf(&b, "\r\n[-%sControl\\Class\\%s]\r\n[%s]\r\n\"ClassGUID\"=\"%s\"\r\n", system, driver, key, g.class())
		for _, p := range g.properties(driver) {
			kind, data := encode(p.value)
			value(fmt.Sprintf(`%s\Properties\%s\%04X`, key, p.format, p.id), "@", 0xffff0000|kind, data)
		}
		if g.DriverVersion == "" {
			continue
		}
		fmt.Fprintf(&b, "\r\n[%s]\r\n\"Driver\"=\"%s\"\r\n", key, strings.ReplaceAll(driver, `\`, `\\`))
		texts := func(subkey, name string, texts ...string) {
			const multiText = 7 // REG_MULTI_SZ
			_, data := encode(texts)
			value(system+`Control\Class\`+driver+subkey, `"`+name+`"`, multiText, data)
		}
		texts("", "UserModeDriverName", slices.Repeat([]string{g.DriverStorePath + `\user.dll`}, 4)...)
		for suffix, files := range map[string][]discovery.RuntimeFile{"": g.System32, "Wow64": g.SysWOW64} {
			for i, f := range files {
				subkey := `\CopyToVmOverwrite`
				if i >= (len(files)+1)/2 {
					subkey = `\CopyToVmWhenNewer`
				}
				// One name stands for both.
				texts(subkey+suffix, fmt.Sprintf("File%02d", i), slices.Compact([]string{f.Source, f.Destination})...)
			}
		}
	}
	return wide(b.String())
}
