package win32

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// propertyKey identifies a property of a device: DEVPROPKEY.
// https://learn.microsoft.com/windows-hardware/drivers/install/devpropkey
type propertyKey struct {
	Category GUID
	ID       uint32
}

// The supported types of properties.
// https://learn.microsoft.com/windows-hardware/drivers/install/property-data-type-identifiers
const (
	typeUint32     = 0x07
	typeInt64      = 0x08
	typeUint64     = 0x09
	typeString     = 0x12
	typeStringList = 0x2012
)

// PropertyName is a property of devices. The constants follow Windows' DEVPKEY_ names.
// https://learn.microsoft.com/windows-hardware/drivers/install/unified-device-property-model--windows-vista-and-later-
type PropertyName int

// The properties of devices, with their types.
const (
	DeviceDesc    PropertyName = iota // typeString
	HardwareIDs                       // typeStringList
	Driver                            // typeString
	Manufacturer                      // typeString
	BusNumber                         // typeUint32
	Address                           // typeUint32
	LocationPaths                     // typeStringList
	DriverVersion                     // typeString
	DriverINF                         // typeString
	NUMANode                          // typeUint32
	DevNodeStatus                     // typeUint32
	ProblemCode                       // typeUint32
	// GPULUID is set by the graphics kernel and is in no Windows header. Others read it as
	// typeUint64 (System Informer) and as a signed number (TensorWorks).
	// https://github.com/winsiderss/systeminformer,
	// https://github.com/TensorWorks/DirectX-Device-Plugins (library/src/WmiQuery.cpp)
	GPULUID
)

type property struct {
	name, category string
	id             uint32
}

func (n PropertyName) property() property {
	// The categories of devpkey.h.
	const (
		device  = "a45c254e-df1c-4efd-8020-67d146a850e0"
		status  = "4340a6c5-93fa-4706-972c-7b648008a5a7"
		numa    = "540b947e-8b40-45bc-a8a2-6a0b894cbda2"
		drivers = "a8b865dd-2e3d-4094-ad97-e593a70c75d6"
		gpu     = "60b193cb-5276-4d0f-96fc-f173abad3ec6"
	)
	return [...]property{
		DeviceDesc:    {"DEVPKEY_Device_DeviceDesc", device, 2},
		HardwareIDs:   {"DEVPKEY_Device_HardwareIds", device, 3},
		Driver:        {"DEVPKEY_Device_Driver", device, 11},
		Manufacturer:  {"DEVPKEY_Device_Manufacturer", device, 13},
		BusNumber:     {"DEVPKEY_Device_BusNumber", device, 23},
		Address:       {"DEVPKEY_Device_Address", device, 30},
		LocationPaths: {"DEVPKEY_Device_LocationPaths", device, 37},
		DriverVersion: {"DEVPKEY_Device_DriverVersion", drivers, 3},
		DriverINF:     {"DEVPKEY_Device_DriverInfPath", drivers, 5},
		NUMANode:      {"DEVPKEY_Device_Numa_Node", numa, 3},
		DevNodeStatus: {"DEVPKEY_Device_DevNodeStatus", status, 2},
		ProblemCode:   {"DEVPKEY_Device_ProblemCode", status, 3},
		GPULUID:       {"DEVPKEY_Gpu_Luid", gpu, 2},
	}[n]
}

func (n PropertyName) key() propertyKey {
	p := n.property()
	return propertyKey{parseGUID(p.category), p.id}
}

func (n PropertyName) String() string { return n.property().name }

// Property is the encoded value of a property.
type Property struct {
	Type uint32 // DEVPROPTYPE
	Data []byte
}

// StringValue decodes a [typeString] property.
func (p Property) StringValue() (string, error) {
	list, err := p.strings(typeString)
	return strings.Join(list[:min(len(list), 1)], ""), err
}

// StringList decodes a [typeStringList] property, whose last string is empty.
func (p Property) StringList() ([]string, error) { return p.strings(typeStringList) }

func (p Property) strings(kind uint32) ([]string, error) {
	if err := p.check(kind, 0); err != nil {
		return nil, err
	}
	return Strings(p.Data)
}

// Uint32 decodes a [typeUint32] property.
func (p Property) Uint32() (uint32, error) {
	if err := p.check(typeUint32, 4); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(p.Data), nil
}

// Uint64 decodes a [typeUint64] property, or the bits of a [typeInt64] one.
func (p Property) Uint64() (uint64, error) {
	if p.Type == typeInt64 {
		p.Type = typeUint64
	}
	if err := p.check(typeUint64, 8); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(p.Data), nil
}

// check returns an error for a property of another type, or of another size unless size is 0.
func (p Property) check(want uint32, size int) error {
	if p.Type != want {
		return fmt.Errorf("type 0x%X, want 0x%X", p.Type, want)
	}
	if size > 0 && len(p.Data) != size {
		return fmt.Errorf("%d bytes, want %d", len(p.Data), size)
	}
	return nil
}
