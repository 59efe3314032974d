//go:build e2e && linux

package bed

import (
	"encoding/binary"
	"fmt"
	"strings"

	"directx-nri/test/windows/hardware"
)

// Types of device properties.
// https://learn.microsoft.com/windows-hardware/drivers/install/property-data-type-identifiers
const (
	typeUint32     = 0x7
	typeUint64     = 0x9
	typeBoolean    = 0x11
	typeString     = 0x12
	typeStringList = 0x2012
)

// Formats of device property keys: devpkey.h of the Windows SDK, and for the LUID, which it
// lacks, what Windows' own tools read.
const (
	deviceFormat = "{a45c254e-df1c-4efd-8020-67d146a850e0}"
	statusFormat = "{4340a6c5-93fa-4706-972c-7b648008a5a7}"
	placeFormat  = "{540b947e-8b40-45bc-a8a2-6a0b894cbda2}"
	driverFormat = "{a8b865dd-2e3d-4094-ad97-e593a70c75d6}"
	gpuFormat    = "{60b193cb-5276-4d0f-96fc-f173abad3ec6}"
)

// registryFile returns a file for 'reg import' with the devices, in place of all others of
// the PCI bus, as Wine's setupapi.dll keeps them (create_device in dlls/setupapi/devinst.c).
func registryFile(devices []hardware.Device) []byte {
	const system = `HKEY_LOCAL_MACHINE\System\CurrentControlSet\`
	var b strings.Builder
	value := func(name string, kind uint32, data []byte) {
		if name != "@" {
			name = `"` + name + `"`
		}
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
			value("Driver", hardware.RegSZ, hardware.String("", "", driver).Data)
			properties = append(properties, text(deviceFormat, 11, driver))
		}
		for _, p := range append(properties, d.Odd...) {
			if p.Data != nil {
				fmt.Fprintf(&b, "\r\n[%s\\Properties\\%s\\%04X]\r\n", key, p.Format, p.ID)
				value("@", 0xffff0000|p.Type, p.Data)
			}
		}
		if d.Driver == nil {
			continue
		}
		for _, v := range d.Driver.Values {
			fmt.Fprintf(&b, "\r\n[%s]\r\n", strings.TrimSuffix(system+`Control\Class\`+driver+`\`+v.Subkey, `\`))
			value(v.Name, v.Type, v.Data)
		}
	}
	return hardware.Wide(b.String())
}

// properties returns a device's properties. Those without data are not set.
func properties(d hardware.Device) []hardware.Property {
	var driver hardware.Driver
	if d.Driver != nil {
		driver = *d.Driver
	}
	return []hardware.Property{
		text(deviceFormat, 2, d.Description),
		list(deviceFormat, 3, d.HardwareIDs),
		text(deviceFormat, 13, d.Manufacturer),
		number(deviceFormat, 23, d.BusNumber),
		number(deviceFormat, 30, d.Address),
		list(deviceFormat, 37, d.LocationPaths),
		number(statusFormat, 2, &d.Status),
		number(statusFormat, 3, &d.Problem),
		number(placeFormat, 3, d.NUMANode),
		{Format: placeFormat, ID: 5, Type: typeBoolean, Data: []byte{0xff}}, // It is present.
		text(driverFormat, 3, driver.Version),
		text(driverFormat, 5, driver.INF),
		long(gpuFormat, 2, d.LUID),
	}
}

func text(format string, id uint32, text string) hardware.Property {
	p := hardware.Property{Format: format, ID: id, Type: typeString}
	if text != "" {
		p.Data = hardware.String("", "", text).Data
	}
	return p
}

func list(format string, id uint32, texts []string) hardware.Property {
	p := hardware.Property{Format: format, ID: id, Type: typeStringList}
	if len(texts) > 0 {
		p.Data = hardware.Strings("", "", texts...).Data
	}
	return p
}

func number(format string, id uint32, n *uint32) hardware.Property {
	p := hardware.Property{Format: format, ID: id, Type: typeUint32}
	if n != nil {
		p.Data = binary.LittleEndian.AppendUint32(nil, *n)
	}
	return p
}

func long(format string, id uint32, n *uint64) hardware.Property {
	p := hardware.Property{Format: format, ID: id, Type: typeUint64}
	if n != nil {
		p.Data = binary.LittleEndian.AppendUint64(nil, *n)
	}
	return p
}

// Interfaces that the graphics kernel registers for adapters.
// https://learn.microsoft.com/windows-hardware/drivers/install/guid-display-device-arrival
const (
	displayArrival = "{1ca05180-a699-450a-9a0c-de4fbe3ddd89}"
	computeArrival = "{1024e4c9-47c9-48d3-b4a8-f9df78523b53}"
)

// events returns lines for the double of cfgmgr32.dll (../doubles/cfgmgr32.c): the changes
// of devices as CM_NOTIFY_ACTION, for interfaces and for device instances.
// https://learn.microsoft.com/windows/win32/api/cfgmgr32/ne-cfgmgr32-cm_notify_action
func events(before, after []hardware.Device) string {
	const arrival, removal, enumerated, started, removed = 0, 1, 7, 8, 9
	var b strings.Builder
	instance := func(action int, d hardware.Device) { fmt.Fprintf(&b, "%d 0 %s\n", action, d.InstanceID) }
	iface := func(action int, d hardware.Device) {
		guid := displayArrival
		if d.Class == hardware.ClassComputeAccelerator {
			guid = computeArrival
		}
		fmt.Fprintf(&b, "%d %s \\\\?\\%s#%s\n", action, guid, strings.ReplaceAll(d.InstanceID, `\`, "#"), guid)
	}
	has := func(devices []hardware.Device, id string) bool {
		for _, d := range devices {
			if d.InstanceID == id {
				return true
			}
		}
		return false
	}
	for _, d := range before {
		if !has(after, d.InstanceID) {
			iface(removal, d)
			instance(removed, d)
		}
	}
	for _, d := range after {
		if !has(before, d.InstanceID) {
			instance(enumerated, d)
			if d.Problem == 0 {
				iface(arrival, d)
			}
		}
		instance(started, d)
	}
	return b.String()
}
