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

// PropertyName is a property of devices. The values follow Windows' DEVPKEY_ names.
// https://learn.microsoft.com/windows-hardware/drivers/install/unified-device-property-model--windows-vista-and-later-
type PropertyName struct {
	name, category string
	id             uint32
}

// The categories of devpkey.h.
const (
	categoryDevice  = "a45c254e-df1c-4efd-8020-67d146a850e0"
	categoryStatus  = "4340a6c5-93fa-4706-972c-7b648008a5a7"
	categoryNUMA    = "540b947e-8b40-45bc-a8a2-6a0b894cbda2"
	categoryDrivers = "a8b865dd-2e3d-4094-ad97-e593a70c75d6"
	categoryGPU     = "60b193cb-5276-4d0f-96fc-f173abad3ec6"
)

// The properties of devices, with their types.
//
//nolint:gochecknoglobals // Constants.
var (
	DeviceDesc    = PropertyName{"DEVPKEY_Device_DeviceDesc", categoryDevice, 2}     // typeString
	HardwareIDs   = PropertyName{"DEVPKEY_Device_HardwareIds", categoryDevice, 3}    // typeStringList
	Driver        = PropertyName{"DEVPKEY_Device_Driver", categoryDevice, 11}        // typeString
	Manufacturer  = PropertyName{"DEVPKEY_Device_Manufacturer", categoryDevice, 13}  // typeString
	BusNumber     = PropertyName{"DEVPKEY_Device_BusNumber", categoryDevice, 23}     // typeUint32
	Address       = PropertyName{"DEVPKEY_Device_Address", categoryDevice, 30}       // typeUint32
	LocationPaths = PropertyName{"DEVPKEY_Device_LocationPaths", categoryDevice, 37} // typeStringList
	DriverVersion = PropertyName{"DEVPKEY_Device_DriverVersion", categoryDrivers, 3} // typeString
	DriverINF     = PropertyName{"DEVPKEY_Device_DriverInfPath", categoryDrivers, 5} // typeString
	NUMANode      = PropertyName{"DEVPKEY_Device_Numa_Node", categoryNUMA, 3}        // typeUint32
	DevNodeStatus = PropertyName{"DEVPKEY_Device_DevNodeStatus", categoryStatus, 2}  // typeUint32
	ProblemCode   = PropertyName{"DEVPKEY_Device_ProblemCode", categoryStatus, 3}    // typeUint32
	// GPULUID is set by the graphics kernel and is in no Windows header. Others read it as
	// typeUint64 (System Informer) and as a signed number (TensorWorks).
	// https://github.com/winsiderss/systeminformer,
	// https://github.com/TensorWorks/DirectX-Device-Plugins (library/src/WmiQuery.cpp)
	GPULUID = PropertyName{"DEVPKEY_Gpu_Luid", categoryGPU, 2}
)

func (n PropertyName) key() propertyKey { return propertyKey{parseGUID(n.category), n.id} }

func (n PropertyName) String() string { return n.name }

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
