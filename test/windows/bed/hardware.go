//go:build e2e && windows

package bed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"directx-nri/discovery"
)

// Setup classes of the devices.
// https://learn.microsoft.com/windows-hardware/drivers/install/system-defined-device-setup-classes-available-to-vendors
const (
	ClassDisplay            = "{4d36e968-e325-11ce-bfc1-08002be10318}"
	ClassComputeAccelerator = "{f01a9d53-3ff6-48d2-9f97-c8a7004be10c}"
)

// Results of CM_Get_DevNode_Status on Windows 10, and problem codes.
// https://learn.microsoft.com/windows/win32/api/cfgmgr32/nf-cfgmgr32-cm_get_devnode_status
const (
	// Running is a device that is started.
	Running = 0x0180200A
	// Stopped is a device with a problem.
	Stopped  = 0x01802400
	Disabled = 22 // CM_PROB_DISABLED
	NoDriver = 28 // CM_PROB_FAILED_INSTALL
)

// Device is a Plug and Play device. Fields with the zero value are not set.
type Device struct {
	InstanceID    string
	Class         string
	Description   string
	Manufacturer  string
	HardwareIDs   []string
	LocationPaths []string
	LUID          *uint64
	NUMANode      *uint32
	BusNumber     *uint32
	Address       *uint32
	// Status and Problem are the results of CM_Get_DevNode_Status.
	Status, Problem uint32
	// Driver is nil for a device without one.
	Driver *Driver
	// Odd are properties with a wrong type or content. They are set last.
	Odd []Property
}

// Property is a device property. The key has a format, as {a45c254e-…}, and a number.
type Property struct {
	Format string
	ID     uint32
	Data   any // see encode
}

// Driver is a device's driver.
type Driver struct {
	Version string
	INF     string
	// Values of the driver key are set in order.
	Values []Value
}

// Value is a registry value. Subkey is empty for the driver key itself.
type Value struct {
	Subkey, Name string
	Data         any // see encode
}

// Set adds a value to the driver key, or to one below it.
func (d *Driver) Set(subkey, name string, data any) {
	d.Values = append(d.Values, Value{subkey, name, data})
}

// Raw is data of any type.
type Raw struct {
	Type uint32
	Data []byte
}

// encode returns data with its type as a registry value and as a device property. Empty
// texts are not set.
// https://learn.microsoft.com/windows/win32/sysinfo/registry-value-types
// https://learn.microsoft.com/windows-hardware/drivers/install/property-data-type-identifiers
func encode(v any) (value, property uint32, data []byte) {
	switch v := v.(type) {
	case string:
		if v != "" {
			data = wide(v + "\x00")
		}
		return 1, 0x12, data
	case []string:
		if v != nil {
			data = wide(strings.Join(append(slices.Clone(v), "\x00"), "\x00"))
		}
		return 7, 0x2012, data
	case *uint32:
		if v != nil {
			data = binary.LittleEndian.AppendUint32(nil, *v)
		}
		return 4, 0x7, data
	case *uint64:
		if v != nil {
			data = binary.LittleEndian.AppendUint64(nil, *v)
		}
		return 11, 0x9, data
	case bool:
		return 3, 0x11, []byte{0xff}
	default:
		raw, _ := v.(Raw) // There are no other types.
		return raw.Type, raw.Type, raw.Data
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

// Adapter is an adapter of DXCore.
type Adapter struct {
	LUID        uint64
	Description string
	// Attributes of the adapter.
	D3D11Graphics, D3D12Graphics, D3D12CoreCompute bool
	// Properties of the adapter.
	Hardware, Integrated, Detachable bool
	// DedicatedMemory is in bytes.
	DedicatedMemory uint64
	// Refuses is the DXCoreAdapterProperty that cannot be read, nil for none.
	Refuses *uint32
}

// line returns the adapter's line for the double of dxcore.dll: hexadecimal numbers and the
// description.
func (a Adapter) line() string {
	refuses := ^uint32(0)
	if a.Refuses != nil {
		refuses = *a.Refuses
	}
	attributes := bits(a.D3D11Graphics, a.D3D12Graphics, a.D3D12CoreCompute)
	properties := bits(a.Hardware, a.Integrated, a.Detachable)
	return fmt.Sprintf("%x %x %x %x %x %s\n", a.LUID, attributes, properties, a.DedicatedMemory, refuses, a.Description)
}

// bits returns the flags as bits, the first as the lowest.
func bits(flags ...bool) (n uint32) {
	for i, flag := range flags {
		if flag {
			n |= 1 << i
		}
	}
	return n
}

// Hardware is what Windows reports, in place of an inventory file.
type Hardware struct {
	Devices  []Device
	Adapters []Adapter
}

// Plug replaces the hardware of the prefix. Devices that stay are changed in place.
func (m *Machine) Plug(t testing.TB, h Hardware) {
	t.Helper()
	var adapters strings.Builder
	for _, a := range h.Adapters {
		adapters.WriteString(a.line())
	}
	Replace(t, `C:\dxcore.txt`, []byte(adapters.String()))
	Replace(t, `C:\devices.reg`, registryFile(h.Devices))
	if _, err := m.Program("reg", "import", `C:\devices.reg`); err != nil {
		t.Fatalf("import the devices: %v", err)
	}
	happened := events(m.plugged, h.Devices)
	m.plugged = slices.Clone(h.Devices)
	f, err := os.OpenFile(`C:\notify.txt`, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(happened)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Formats of device property keys: devpkey.h of the Windows SDK, and for the LUID, which it
// lacks, what Windows' own tools read.
const (
	deviceFormat = "{a45c254e-df1c-4efd-8020-67d146a850e0}"
	statusFormat = "{4340a6c5-93fa-4706-972c-7b648008a5a7}"
	placeFormat  = "{540b947e-8b40-45bc-a8a2-6a0b894cbda2}"
	driverFormat = "{a8b865dd-2e3d-4094-ad97-e593a70c75d6}"
	gpuFormat    = "{60b193cb-5276-4d0f-96fc-f173abad3ec6}"
)

// OddLocationPaths returns location paths with a wrong type.
func OddLocationPaths() Property { return Property{deviceFormat, 37, Raw{0x7, []byte{1, 2, 3, 4}}} }

// OddLUID returns a LUID that is cut short.
func OddLUID() Property { return Property{gpuFormat, 2, Raw{0x9, []byte{1, 2, 3}}} }

// registryFile returns a file for 'reg import' with the devices, in place of all others of
// the PCI bus, as Wine's setupapi.dll keeps them (create_device in dlls/setupapi/devinst.c).
func registryFile(devices []Device) []byte {
	const system = `HKEY_LOCAL_MACHINE\System\CurrentControlSet\`
	var b strings.Builder
	value := func(name string, kind uint32, data []byte) {
		var bytes []string
		for _, c := range data {
			bytes = append(bytes, fmt.Sprintf("%02x", c))
		}
		fmt.Fprintf(&b, "%s=hex(%x):%s\r\n", name, kind, strings.Join(bytes, ","))
	}
	b.WriteString("\ufeffWindows Registry Editor Version 5.00\r\n")
	fmt.Fprintf(&b, "\r\n[-%sEnum\\PCI]\r\n", system)
	for i, d := range devices {
		key, driver := system+`Enum\`+d.InstanceID, fmt.Sprintf(`%s\%04d`, d.Class, 1000+i)
		fmt.Fprintf(&b, "\r\n[-%sControl\\Class\\%s]\r\n[%s]\r\n", system, driver, key)
		fmt.Fprintf(&b, "\"ClassGUID\"=\"%s\"\r\n", d.Class)
		properties := properties(d)
		if d.Driver != nil {
			fmt.Fprintf(&b, "\"Driver\"=\"%s\"\r\n", strings.ReplaceAll(driver, `\`, `\\`))
			properties = append(properties, Property{deviceFormat, 11, driver}, Property{driverFormat, 3, d.Driver.Version}, Property{driverFormat, 5, d.Driver.INF})
		}
		for _, p := range append(properties, d.Odd...) {
			if _, kind, data := encode(p.Data); data != nil {
				fmt.Fprintf(&b, "\r\n[%s\\Properties\\%s\\%04X]\r\n", key, p.Format, p.ID)
				value("@", 0xffff0000|kind, data)
			}
		}
		if d.Driver == nil {
			continue
		}
		for _, v := range d.Driver.Values {
			fmt.Fprintf(&b, "\r\n[%s]\r\n", strings.TrimSuffix(system+`Control\Class\`+driver+`\`+v.Subkey, `\`))
			kind, _, data := encode(v.Data)
			value(`"`+v.Name+`"`, kind, data)
		}
	}
	return wide(b.String())
}

// properties returns a device's properties. Those without data are not set.
func properties(d Device) []Property {
	return []Property{
		{deviceFormat, 2, d.Description},
		{deviceFormat, 3, d.HardwareIDs},
		{deviceFormat, 13, d.Manufacturer},
		{deviceFormat, 23, d.BusNumber},
		{deviceFormat, 30, d.Address},
		{deviceFormat, 37, d.LocationPaths},
		{statusFormat, 2, &d.Status},
		{statusFormat, 3, &d.Problem},
		{placeFormat, 3, d.NUMANode},
		{placeFormat, 5, true}, // It is present.
		{gpuFormat, 2, d.LUID},
	}
}

// Interfaces that the graphics kernel registers for adapters.
// https://learn.microsoft.com/windows-hardware/drivers/install/guid-display-device-arrival
const (
	displayArrival = "{1ca05180-a699-450a-9a0c-de4fbe3ddd89}"
	computeArrival = "{1024e4c9-47c9-48d3-b4a8-f9df78523b53}"
)

// events returns lines for the double of cfgmgr32.dll (../doubles/cfgmgr32.c): the changes
// of device interfaces as CM_NOTIFY_ACTION. A changed device restarts.
// https://learn.microsoft.com/windows/win32/api/cfgmgr32/ne-cfgmgr32-cm_notify_action
func events(before, after []Device) string {
	const arrival, removal = 0, 1
	var b strings.Builder
	compare := func(action int, devices, others []Device) {
		for _, d := range devices {
			guid := displayArrival
			if d.Class == ClassComputeAccelerator {
				guid = computeArrival
			}
			same := slices.ContainsFunc(others, func(o Device) bool { return reflect.DeepEqual(o, d) })
			if d.Problem == 0 && !same {
				fmt.Fprintf(&b, "%d %s \\\\?\\%s#%s\n", action, guid, strings.ReplaceAll(d.InstanceID, `\`, "#"), guid)
			}
		}
	}
	compare(removal, before, after)
	compare(arrival, after, before)
	return b.String()
}

// Hardware returns the GPUs of the inventory as hardware and creates their drivers' files.
func (v *Inventory) Hardware(t testing.TB) Hardware {
	t.Helper()
	v.place(t)
	var h Hardware
	for i, g := range v.GPUs {
		luid, ok := discovery.ParseLUID(g.LUID)
		if !ok {
			t.Fatalf("invalid LUID %s", g.LUID)
		}
		number := uint64(luid)
		driver := &Driver{Version: "31.0.15.5222", INF: fmt.Sprintf("oem%d.inf", i)}
		driver.Set("", "UserModeDriverName", []string{g.Store + `\user.dll`})
		for j, f := range g.Files {
			subkey := "CopyToVmOverwrite"
			if f.WOW64 {
				subkey += "Wow64"
			}
			driver.Set(subkey, fmt.Sprintf("File%02d", j), []string{f.Source, f.Name})
		}
		h.Devices = append(h.Devices, Device{
			InstanceID: g.InstanceID, Class: ClassDisplay, Description: "a test's GPU", LocationPaths: []string{g.Location}, LUID: &number, Status: Running, Driver: driver,
		})
		h.Adapters = append(h.Adapters, Adapter{
			LUID: number, Description: "a test's GPU", Hardware: true, D3D11Graphics: true, D3D12Graphics: true, D3D12CoreCompute: true,
		})
	}
	return h
}
