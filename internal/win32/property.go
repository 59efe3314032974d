package win32

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// PropertyKey identifies a property of a device: DEVPROPKEY.
// https://learn.microsoft.com/windows-hardware/drivers/install/devpropkey
type PropertyKey struct {
	Category GUID
	ID       uint32
}

// The supported types of properties.
// https://learn.microsoft.com/windows-hardware/drivers/install/property-data-type-identifiers
const (
	TypeUint32   = 0x07
	TypeInt64    = 0x08
	TypeUint64   = 0x09
	TypeText     = 0x12
	TypeTextList = 0x2012
)

// PropertyName is a property of devices. The constants follow Windows' DEVPKEY_ names.
// https://learn.microsoft.com/windows-hardware/drivers/install/unified-device-property-model--windows-vista-and-later-
type PropertyName int

// The properties of devices, with their types.
const (
	DeviceDesc    PropertyName = iota // TypeText
	HardwareIDs                       // TypeTextList
	Driver                            // TypeText
	Manufacturer                      // TypeText
	BusNumber                         // TypeUint32
	Address                           // TypeUint32
	LocationPaths                     // TypeTextList
	DriverVersion                     // TypeText
	DriverINF                         // TypeText
	NUMANode                          // TypeUint32
	DevNodeStatus                     // TypeUint32
	ProblemCode                       // TypeUint32
	// GPULUID is set by the graphics kernel and is in no Windows header. Others read it as
	// TypeUint64 (System Informer) and as a signed number (TensorWorks).
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
		places  = "540b947e-8b40-45bc-a8a2-6a0b894cbda2"
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
		NUMANode:      {"DEVPKEY_Device_Numa_Node", places, 3},
		DevNodeStatus: {"DEVPKEY_Device_DevNodeStatus", status, 2},
		ProblemCode:   {"DEVPKEY_Device_ProblemCode", status, 3},
		GPULUID:       {"DEVPKEY_Gpu_Luid", gpu, 2},
	}[n]
}

// Key returns the property's key.
func (n PropertyName) Key() PropertyKey {
	p := n.property()
	return PropertyKey{parseGUID(p.category), p.id}
}

func (n PropertyName) String() string { return n.property().name }

// Property is the encoded value of a property.
type Property struct {
	Type uint32 // DEVPROPTYPE
	Data []byte
}

// Text decodes a [TypeText] property.
func (p Property) Text() (string, error) {
	list, err := p.strings(TypeText)
	return strings.Join(list[:min(len(list), 1)], ""), err
}

// TextList decodes a [TypeTextList] property, which an empty text ends.
func (p Property) TextList() ([]string, error) { return p.strings(TypeTextList) }

func (p Property) strings(kind uint32) ([]string, error) {
	if err := p.check(kind, 0); err != nil {
		return nil, err
	}
	return Strings(p.Data)
}

// Uint32 decodes a [TypeUint32] property.
func (p Property) Uint32() (uint32, error) {
	if err := p.check(TypeUint32, 4); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(p.Data), nil
}

// Uint64 decodes a [TypeUint64] property, or the bits of a [TypeInt64] one.
func (p Property) Uint64() (uint64, error) {
	if p.Type == TypeInt64 {
		p.Type = TypeUint64
	}
	if err := p.check(TypeUint64, 8); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(p.Data), nil
}

// check returns an error for a property of another type, or of another size unless
// size is 0.
func (p Property) check(want uint32, size int) error {
	if p.Type != want {
		return fmt.Errorf("type 0x%X, want 0x%X", p.Type, want)
	}
	if size > 0 && len(p.Data) != size {
		return fmt.Errorf("%d bytes, want %d", len(p.Data), size)
	}
	return nil
}
