package win32

import (
	"errors"
	"fmt"

	"golang.org/x/sys/windows"
)

// Device is a device of Plug and Play.
type Device struct {
	set  windows.DevInfo
	info *windows.DevInfoData
}

// VisitDevices calls visit with each present device of class, including disabled ones,
// until visit returns an error. The device is valid during the call.
// https://learn.microsoft.com/windows/win32/api/setupapi/nf-setupapi-setupdigetclassdevsexw
func VisitDevices(class GUID, visit func(Device) error) (err error) {
	set, err := windows.SetupDiGetClassDevsEx((*windows.GUID)(&class), "", 0, windows.DIGCF_PRESENT, 0, "")
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
	key := name.key()
	buffer := make([]byte, 512)
	for {
		var size uint32
		err := setupDiGetDeviceProperty(d.set, d.info, &key, &p.Type, &buffer[0], uint32(len(buffer)), &size, 0)
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
