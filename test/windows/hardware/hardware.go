// Package hardware describes the devices of a Windows node.
package hardware

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"
)

// Setup classes of the devices.
// https://learn.microsoft.com/windows-hardware/drivers/install/system-defined-device-setup-classes-available-to-vendors
const (
	ClassDisplay            = "{4d36e968-e325-11ce-bfc1-08002be10318}"
	ClassComputeAccelerator = "{f01a9d53-3ff6-48d2-9f97-c8a7004be10c}"
)

// Results of CM_Get_DevNode_Status on Windows 10.
// https://learn.microsoft.com/windows/win32/api/cfgmgr32/nf-cfgmgr32-cm_get_devnode_status
const (
	// Running is a device that is started.
	Running = 0x0180200A
	// Stopped is a device with a problem.
	Stopped = 0x01802400
)

// Problem codes.
const (
	Disabled = 22 // CM_PROB_DISABLED
	NoDriver = 28 // CM_PROB_FAILED_INSTALL
	Failed   = 43 // CM_PROB_FAILED_POST_START
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

// Property is a device property.
type Property struct {
	// Format and ID are the key, as {a45c254e-…} and 37.
	Format string
	ID     uint32
	Type   uint32
	Data   []byte
}

// Driver is a device's driver.
type Driver struct {
	Version string
	INF     string
	// Values of the driver key are set in order.
	Values []Value
}

// Value is a registry value.
type Value struct {
	// Subkey is empty for the driver key itself.
	Subkey, Name string
	// Type is one of the REG_ types.
	Type uint32
	Data []byte
}

// Types of registry values.
// https://learn.microsoft.com/windows/win32/sysinfo/registry-value-types
const (
	RegSZ      = 1
	regBinary  = 3
	regMultiSZ = 7
)

// Strings returns a value of type REG_MULTI_SZ.
func Strings(subkey, name string, texts ...string) Value {
	return Value{subkey, name, regMultiSZ, Wide(strings.Join(slices.Concat(texts, []string{"\x00"}), "\x00"))}
}

// String returns a value of type REG_SZ.
func String(subkey, name, text string) Value {
	return Value{subkey, name, RegSZ, Wide(text + "\x00")}
}

// Binary returns a value of type REG_BINARY.
func Binary(subkey, name string, data []byte) Value {
	return Value{subkey, name, regBinary, data}
}

// Wide returns text in UTF-16.
func Wide(text string) []byte {
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

// Line returns the adapter's line for the double of dxcore.dll: hexadecimal numbers and the
// description.
func (a Adapter) Line() string {
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
