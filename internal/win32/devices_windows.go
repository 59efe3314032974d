package win32

import (
	"errors"
	"fmt"

	"golang.org/x/sys/windows"
)

// The setup classes of display adapters and of compute accelerators.
// https://learn.microsoft.com/windows-hardware/drivers/install/system-defined-device-setup-classes-available-to-vendors
//
//nolint:gochecknoglobals // Constants.
var (
	DisplayClass            = newGUID(0x4d36e968, 0xe325, 0x11ce, 0xbf, 0xc1, 0x08, 0x00, 0x2b, 0xe1, 0x03, 0x18)
	ComputeAcceleratorClass = newGUID(0xf01a9d53, 0x3ff6, 0x48d2, 0x9f, 0x97, 0xc8, 0xa7, 0x00, 0x4b, 0xe1, 0x0c)
)

// PropertyName is a property of devices. The values follow Windows' DEVPKEY_ names.
// https://learn.microsoft.com/windows-hardware/drivers/install/unified-device-property-model--windows-vista-and-later-
type PropertyName struct {
	name string
	key  windows.DEVPROPKEY
}

func (n PropertyName) String() string { return n.name }

// The categories of devpkey.h.
//
//nolint:gochecknoglobals // Constants.
var (
	categoryDevice  = windows.DEVPROPGUID(newGUID(0xa45c254e, 0xdf1c, 0x4efd, 0x80, 0x20, 0x67, 0xd1, 0x46, 0xa8, 0x50, 0xe0))
	categoryStatus  = windows.DEVPROPGUID(newGUID(0x4340a6c5, 0x93fa, 0x4706, 0x97, 0x2c, 0x7b, 0x64, 0x80, 0x08, 0xa5, 0xa7))
	categoryNUMA    = windows.DEVPROPGUID(newGUID(0x540b947e, 0x8b40, 0x45bc, 0xa8, 0xa2, 0x6a, 0x0b, 0x89, 0x4c, 0xbd, 0xa2))
	categoryDrivers = windows.DEVPROPGUID(newGUID(0xa8b865dd, 0x2e3d, 0x4094, 0xad, 0x97, 0xe5, 0x93, 0xa7, 0x0c, 0x75, 0xd6))
	categoryGPU     = windows.DEVPROPGUID(newGUID(0x60b193cb, 0x5276, 0x4d0f, 0x96, 0xfc, 0xf1, 0x73, 0xab, 0xad, 0x3e, 0xc6))
)

// The properties of devices, with their types.
//
//nolint:gochecknoglobals // Constants.
var (
	DeviceDesc    = PropertyName{"DEVPKEY_Device_DeviceDesc", windows.DEVPROPKEY{FmtID: categoryDevice, PID: 2}}     // typeString
	HardwareIDs   = PropertyName{"DEVPKEY_Device_HardwareIds", windows.DEVPROPKEY{FmtID: categoryDevice, PID: 3}}    // typeStringList
	Driver        = PropertyName{"DEVPKEY_Device_Driver", windows.DEVPROPKEY{FmtID: categoryDevice, PID: 11}}        // typeString
	BusNumber     = PropertyName{"DEVPKEY_Device_BusNumber", windows.DEVPROPKEY{FmtID: categoryDevice, PID: 23}}     // typeUint32
	Address       = PropertyName{"DEVPKEY_Device_Address", windows.DEVPROPKEY{FmtID: categoryDevice, PID: 30}}       // typeUint32
	LocationPaths = PropertyName{"DEVPKEY_Device_LocationPaths", windows.DEVPROPKEY{FmtID: categoryDevice, PID: 37}} // typeStringList
	DriverVersion = PropertyName{"DEVPKEY_Device_DriverVersion", windows.DEVPROPKEY{FmtID: categoryDrivers, PID: 3}} // typeString
	DriverINF     = PropertyName{"DEVPKEY_Device_DriverInfPath", windows.DEVPROPKEY{FmtID: categoryDrivers, PID: 5}} // typeString
	NUMANode      = PropertyName{"DEVPKEY_Device_Numa_Node", windows.DEVPROPKEY{FmtID: categoryNUMA, PID: 3}}        // typeUint32
	DevNodeStatus = PropertyName{"DEVPKEY_Device_DevNodeStatus", windows.DEVPROPKEY{FmtID: categoryStatus, PID: 2}}  // typeUint32
	ProblemCode   = PropertyName{"DEVPKEY_Device_ProblemCode", windows.DEVPROPKEY{FmtID: categoryStatus, PID: 3}}    // typeUint32
	// GPULUID is set by the graphics kernel and is in no Windows header. Others read it as
	// typeUint64 (System Informer) and as a signed number (TensorWorks).
	// https://github.com/winsiderss/systeminformer,
	// https://github.com/TensorWorks/DirectX-Device-Plugins (library/src/WmiQuery.cpp)
	GPULUID = PropertyName{"DEVPKEY_Gpu_Luid", windows.DEVPROPKEY{FmtID: categoryGPU, PID: 2}}
)

// newGUID is DEFINE_GUID of guiddef.h.
func newGUID(a uint32, b, c uint16, d ...byte) windows.GUID {
	return windows.GUID{Data1: a, Data2: b, Data3: c, Data4: [8]byte(d)}
}

// Device is a device of Plug and Play.
type Device struct {
	set  windows.DevInfo
	info *windows.DevInfoData
}

// VisitDevices calls visit with each present device of class, including disabled ones,
// until visit returns an error. The device is valid during the call.
// https://learn.microsoft.com/windows/win32/api/setupapi/nf-setupapi-setupdigetclassdevsexw
func VisitDevices(class windows.GUID, visit func(Device) error) (err error) {
	set, err := windows.SetupDiGetClassDevsEx(&class, "", 0, windows.DIGCF_PRESENT, 0, "")
	if errors.Is(err, windows.ERROR_INVALID_CLASS) { // Older Windows has fewer classes.
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the devices of class %s: %w", class, err)
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	for i := 0; ; i++ {
		info, err := set.EnumDeviceInfo(i)
		if errors.Is(err, windows.ERROR_NO_MORE_ITEMS) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list the devices of class %s: %w", class, err)
		}
		if err := visit(Device{set, info}); err != nil {
			return err
		}
	}
}

// InstanceID returns the device's instance ID.
// https://learn.microsoft.com/windows/win32/api/setupapi/nf-setupapi-setupdigetdeviceinstanceidw
func (d Device) InstanceID() (string, error) {
	id, err := d.set.DeviceInstanceID(d.info)
	if err != nil {
		return "", fmt.Errorf("read a device's instance ID: %w", err)
	}
	return id, nil
}

// Property reads a property. ok is false if the device does not have it.
func (d Device) Property(name PropertyName) (p Property, ok bool, err error) {
	buffer := make([]byte, 512)
	for {
		var size uint32
		err := setupDiGetDeviceProperty(d.set, d.info, &name.key, &p.Type, &buffer[0], uint32(len(buffer)), &size, 0)
		switch {
		case err == nil:
			p.Data = buffer[:size]
			return p, true, nil
		case errors.Is(err, windows.ERROR_NOT_FOUND):
			return Property{}, false, nil
		case errors.Is(err, windows.ERROR_INSUFFICIENT_BUFFER) && int(size) > len(buffer):
			buffer = make([]byte, size) // It may grow until the next call.
		default:
			return Property{}, false, fmt.Errorf("read %s: %w", name, err)
		}
	}
}

// DriverStoreINF returns the path in the driver store of an installed INF file, such as
// `oem12.inf`.
// https://learn.microsoft.com/windows/win32/api/setupapi/nf-setupapi-setupgetinfdriverstorelocationw
func DriverStoreINF(name string) (string, error) {
	if err := available(procSetupGetInfDriverStoreLocationW); err != nil {
		return "", err
	}
	inf, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return "", fmt.Errorf("find %q in the driver store: %w", name, err)
	}
	buffer := make([]uint16, windows.MAX_PATH)
	if err := setupGetInfDriverStoreLocation(inf, 0, nil, &buffer[0], uint32(len(buffer)), nil); err != nil {
		return "", fmt.Errorf("find %s in the driver store: %w", name, err)
	}
	return windows.UTF16ToString(buffer), nil
}
