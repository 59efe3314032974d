// Package hardware describes the devices of a Windows node, for the Windows
// suite: the suite writes a [Node] as JSON, and ../devices makes Windows agree
// with it.
package hardware

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf16"
)

// Setup classes of the devices.
// https://learn.microsoft.com/windows-hardware/drivers/install/system-defined-device-setup-classes-available-to-vendors
const (
	ClassDisplay            = "{4d36e968-e325-11ce-bfc1-08002be10318}"
	ClassComputeAccelerator = "{f01a9d53-3ff6-48d2-9f97-c8a7004be10c}"
)

// What CM_Get_DevNode_Status answers for usual devices, as Windows 10 does.
// https://learn.microsoft.com/windows/win32/api/cfgmgr32/nf-cfgmgr32-cm_get_devnode_status
const (
	// Running is a device that works: its driver is loaded and it is started.
	Running = 0x0180200A
	// Stopped is one with a problem, which is told beside it.
	Stopped = 0x01802400
)

// Problem codes.
const (
	Disabled = 22 // CM_PROB_DISABLED
	NoDriver = 28 // CM_PROB_FAILED_INSTALL
	Failed   = 43 // CM_PROB_FAILED_POST_START
)

// Node is everything that Windows is to know.
type Node struct {
	Devices []Device
}

// Device is one device of Plug and Play. What is the zero value or nil is not
// told to Windows.
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
	// Status and Problem are what CM_Get_DevNode_Status answers.
	Status, Problem uint32
	// Driver is nil for a device that has none.
	Driver *Driver
	// Odd are properties whose type or content is not what it should be. They
	// are set last.
	Odd []Property
}

// Property is a device property, by the names that Windows has for it.
type Property struct {
	// Format and ID are the key, as {a45c254e-…} and 37.
	Format string
	ID     uint32
	Type   uint32
	Data   []byte
}

// Driver is what Windows knows of a device's driver.
type Driver struct {
	Version string
	INF     string
	// Values are in the driver key, in the order in which they are set.
	Values []Value
}

// Value is a registry value.
type Value struct {
	// Subkey is "" for the driver key's own values.
	Subkey, Name string
	// Type is one of the REG_ types.
	Type uint32
	Data []byte
}

// Types of registry values.
// https://learn.microsoft.com/windows/win32/sysinfo/registry-value-types
const (
	regSZ      = 1
	regBinary  = 3
	regMultiSZ = 7
)

// Strings returns a value of type REG_MULTI_SZ.
func Strings(subkey, name string, texts ...string) Value {
	return Value{subkey, name, regMultiSZ, MultiString(texts...)}
}

// String returns a value of type REG_SZ.
func String(subkey, name, text string) Value {
	return Value{subkey, name, regSZ, wide(text + "\x00")}
}

// Binary returns a value of type REG_BINARY.
func Binary(subkey, name string, data []byte) Value {
	return Value{subkey, name, regBinary, data}
}

// MultiString returns texts as Windows holds a list of them: each ends with a
// zero, and so does the list.
func MultiString(texts ...string) []byte {
	var b strings.Builder
	for _, text := range texts {
		b.WriteString(text + "\x00")
	}
	return wide(b.String() + "\x00")
}

// wide returns text in UTF-16, without an end.
func wide(text string) []byte {
	var data []byte
	for _, unit := range utf16.Encode([]rune(text)) {
		data = binary.LittleEndian.AppendUint16(data, unit)
	}
	return data
}

// Adapter is what DXCore says about an adapter. The double of dxcore.dll reads
// it as [Adapter.Line].
type Adapter struct {
	LUID        uint64
	Description string
	// Attributes of the adapter.
	D3D11Graphics, D3D12Graphics, D3D12CoreCompute bool
	// Properties of the adapter.
	Hardware, Integrated, Detachable bool
	// DedicatedMemory is in bytes.
	DedicatedMemory uint64
	// Refuses is a property that cannot be read, by its number in
	// DXCoreAdapterProperty, nil for none.
	Refuses *uint32
}

// Line returns the adapter as the double of dxcore.dll reads it: numbers in
// hexadecimal, and then the description to the end of the line.
func (a Adapter) Line() string {
	refuses := ^uint32(0)
	if a.Refuses != nil {
		refuses = *a.Refuses
	}
	attributes := bits(a.D3D11Graphics, a.D3D12Graphics, a.D3D12CoreCompute)
	properties := bits(a.Hardware, a.Integrated, a.Detachable)
	return fmt.Sprintf("%x %x %x %x %x %s\n", a.LUID, attributes, properties, a.DedicatedMemory, refuses, a.Description)
}

// bits returns a number with the first flag as its lowest bit.
func bits(flags ...bool) (n uint32) {
	for i, flag := range flags {
		if flag {
			n |= 1 << i
		}
	}
	return n
}
