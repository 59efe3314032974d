package win32

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// PropertyKey identifies a property of a device: DEVPROPKEY.
// https://learn.microsoft.com/windows-hardware/drivers/install/devpropkey
type PropertyKey struct {
	Category GUID
	ID       uint32
}

// PropertyType is a DEVPROPTYPE.
// https://learn.microsoft.com/windows-hardware/drivers/install/property-data-type-identifiers
type PropertyType uint32

// The supported property types.
const (
	TypeUint32   PropertyType = 0x07
	TypeUint64   PropertyType = 0x09
	TypeBoolean  PropertyType = 0x11
	TypeText     PropertyType = 0x12
	TypeTextList PropertyType = 0x2012
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
	IsPresent                         // TypeBoolean
	// GPULUID is set by the graphics kernel and is in no Windows header. TypeUint64.
	// https://github.com/TensorWorks/DirectX-Device-Plugins (library/src/WmiQuery.cpp)
	GPULUID
)

type property struct {
	name string
	key  PropertyKey
}

func (n PropertyName) property() property {
	// The categories of devpkey.h.
	var (
		device  = GUID{0xa45c254e, 0xdf1c, 0x4efd, [8]byte{0x80, 0x20, 0x67, 0xd1, 0x46, 0xa8, 0x50, 0xe0}}
		status  = GUID{0x4340a6c5, 0x93fa, 0x4706, [8]byte{0x97, 0x2c, 0x7b, 0x64, 0x80, 0x08, 0xa5, 0xa7}}
		places  = GUID{0x540b947e, 0x8b40, 0x45bc, [8]byte{0xa8, 0xa2, 0x6a, 0x0b, 0x89, 0x4c, 0xbd, 0xa2}}
		drivers = GUID{0xa8b865dd, 0x2e3d, 0x4094, [8]byte{0xad, 0x97, 0xe5, 0x93, 0xa7, 0x0c, 0x75, 0xd6}}
		gpu     = GUID{0x60b193cb, 0x5276, 0x4d0f, [8]byte{0x96, 0xfc, 0xf1, 0x73, 0xab, 0xad, 0x3e, 0xc6}}
	)
	return [...]property{
		DeviceDesc:    {"DEVPKEY_Device_DeviceDesc", PropertyKey{device, 2}},
		HardwareIDs:   {"DEVPKEY_Device_HardwareIds", PropertyKey{device, 3}},
		Driver:        {"DEVPKEY_Device_Driver", PropertyKey{device, 11}},
		Manufacturer:  {"DEVPKEY_Device_Manufacturer", PropertyKey{device, 13}},
		BusNumber:     {"DEVPKEY_Device_BusNumber", PropertyKey{device, 23}},
		Address:       {"DEVPKEY_Device_Address", PropertyKey{device, 30}},
		LocationPaths: {"DEVPKEY_Device_LocationPaths", PropertyKey{device, 37}},
		DriverVersion: {"DEVPKEY_Device_DriverVersion", PropertyKey{drivers, 3}},
		DriverINF:     {"DEVPKEY_Device_DriverInfPath", PropertyKey{drivers, 5}},
		NUMANode:      {"DEVPKEY_Device_Numa_Node", PropertyKey{places, 3}},
		DevNodeStatus: {"DEVPKEY_Device_DevNodeStatus", PropertyKey{status, 2}},
		ProblemCode:   {"DEVPKEY_Device_ProblemCode", PropertyKey{status, 3}},
		IsPresent:     {"DEVPKEY_Device_IsPresent", PropertyKey{places, 5}},
		GPULUID:       {"DEVPKEY_Gpu_Luid", PropertyKey{gpu, 2}},
	}[n]
}

// Key returns the property's key.
func (n PropertyName) Key() PropertyKey { return n.property().key }

func (n PropertyName) String() string { return n.property().name }

// Property is the encoded value of a property.
type Property struct {
	Type PropertyType
	Data []byte
}

// Text decodes a [TypeText] property.
func (p Property) Text() (string, error) {
	if err := p.check(TypeText, 0); err != nil {
		return "", err
	}
	s, _, err := cutText(p.Data)
	return s, err
}

// TextList decodes a [TypeTextList] property, which an empty text ends.
func (p Property) TextList() ([]string, error) {
	if err := p.check(TypeTextList, 0); err != nil {
		return nil, err
	}
	var list []string
	for rest := p.Data; ; {
		s, next, err := cutText(rest)
		if err != nil {
			return nil, fmt.Errorf("text %d of the list: %w", len(list)+1, err)
		}
		if s == "" {
			return list, nil
		}
		list, rest = append(list, s), next
	}
}

// Uint32 decodes a [TypeUint32] property.
func (p Property) Uint32() (uint32, error) {
	if err := p.check(TypeUint32, 4); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(p.Data), nil
}

// Uint64 decodes a [TypeUint64] property.
func (p Property) Uint64() (uint64, error) {
	if err := p.check(TypeUint64, 8); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(p.Data), nil
}

// Bool decodes a [TypeBoolean] property: DEVPROP_TRUE is -1 in one byte.
// https://learn.microsoft.com/windows-hardware/drivers/install/devprop-type-boolean
func (p Property) Bool() (bool, error) {
	if err := p.check(TypeBoolean, 1); err != nil {
		return false, err
	}
	switch p.Data[0] {
	case 0x00:
		return false, nil
	case 0xFF:
		return true, nil
	}
	return false, fmt.Errorf("0x%02X is neither true nor false", p.Data[0])
}

// check returns an error for a property of another type, or of another size unless
// size is 0.
func (p Property) check(want PropertyType, size int) error {
	if p.Type != want {
		return fmt.Errorf("type 0x%X, want 0x%X", uint32(p.Type), uint32(want))
	}
	if size > 0 && len(p.Data) != size {
		return fmt.Errorf("%d bytes, want %d", len(p.Data), size)
	}
	return nil
}

// cutText returns the NUL-terminated UTF-16 text at the start of data, and the rest.
func cutText(data []byte) (s string, rest []byte, err error) {
	if len(data)%2 != 0 {
		return "", nil, fmt.Errorf("%d bytes of UTF-16 text", len(data))
	}
	for i := 0; i < len(data); i += 2 {
		if data[i] == 0 && data[i+1] == 0 {
			return text(units(data[:i])), data[i+2:], nil
		}
	}
	return "", nil, errors.New("text without terminator")
}

// guid decodes the first 16 bytes of data.
func guid(data []byte) GUID {
	g := GUID{
		Data1: binary.LittleEndian.Uint32(data),
		Data2: binary.LittleEndian.Uint16(data[4:]),
		Data3: binary.LittleEndian.Uint16(data[6:]),
	}
	copy(g.Data4[:], data[8:16])
	return g
}
