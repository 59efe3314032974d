//go:build windows

package main

import (
	"encoding/binary"

	"directx-nri/test/windows/hardware"
)

// Types of device properties.
// https://learn.microsoft.com/windows-hardware/drivers/install/property-data-type-identifiers
const (
	typeEmpty      = 0x0
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

// properties returns a device's properties. Those without a type are deleted.
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
	if text == "" {
		return hardware.Property{Format: format, ID: id, Type: typeEmpty}
	}
	// A string lacks the list's end.
	data := hardware.MultiString(text)
	return hardware.Property{Format: format, ID: id, Type: typeString, Data: data[:len(data)-2]}
}

func list(format string, id uint32, texts []string) hardware.Property {
	if len(texts) == 0 {
		return hardware.Property{Format: format, ID: id, Type: typeEmpty}
	}
	return hardware.Property{Format: format, ID: id, Type: typeStringList, Data: hardware.MultiString(texts...)}
}

func number(format string, id uint32, n *uint32) hardware.Property {
	if n == nil {
		return hardware.Property{Format: format, ID: id, Type: typeEmpty}
	}
	return hardware.Property{Format: format, ID: id, Type: typeUint32, Data: binary.LittleEndian.AppendUint32(nil, *n)}
}

func long(format string, id uint32, n *uint64) hardware.Property {
	if n == nil {
		return hardware.Property{Format: format, ID: id, Type: typeEmpty}
	}
	return hardware.Property{Format: format, ID: id, Type: typeUint64, Data: binary.LittleEndian.AppendUint64(nil, *n)}
}
