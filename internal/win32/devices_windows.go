package win32

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// errNoSuchDevNode is CR_NO_SUCH_DEVNODE: the device is not present.
const errNoSuchDevNode = ConfigError(0x0D)

// DeviceSet is a device information set. It is not safe for concurrent use.
type DeviceSet struct {
	set windows.DevInfo
}

// PresentDevices returns the present devices of class, including disabled ones. The
// caller closes the set.
// https://learn.microsoft.com/windows/win32/api/setupapi/nf-setupapi-setupdigetclassdevsexw
func PresentDevices(class GUID) (*DeviceSet, error) {
	set, err := windows.SetupDiGetClassDevsEx((*windows.GUID)(&class), "", 0, windows.DIGCF_PRESENT, 0, "")
	if errors.Is(err, windows.ERROR_INVALID_CLASS) { // Older Windows has fewer classes.
		return NoDevices()
	}
	if err != nil {
		return nil, fmt.Errorf("list the devices of class %s: %w", class, err)
	}
	return &DeviceSet{set: set}, nil
}

// NoDevices returns an empty set, for [DeviceSet.Open]. The caller closes it.
// https://learn.microsoft.com/windows/win32/api/setupapi/nf-setupapi-setupdicreatedeviceinfolistexw
func NoDevices() (*DeviceSet, error) {
	set, err := windows.SetupDiCreateDeviceInfoListEx(nil, 0, "")
	if err != nil {
		return nil, fmt.Errorf("create a device set: %w", err)
	}
	return &DeviceSet{set: set}, nil
}

// Close frees the set and its devices.
func (s *DeviceSet) Close() error {
	if err := s.set.Close(); err != nil {
		return fmt.Errorf("close a device set: %w", err)
	}
	return nil
}

// Device returns the device at index, from 0; ok is false after the last one. The
// device is valid until the set is closed.
func (s *DeviceSet) Device(index int) (d Device, ok bool, err error) {
	data, err := s.set.EnumDeviceInfo(index)
	if errors.Is(err, windows.ERROR_NO_MORE_ITEMS) {
		return Device{}, false, nil
	}
	if err != nil {
		return Device{}, false, fmt.Errorf("read device %d of a set: %w", index, err)
	}
	return Device{set: s.set, info: (*deviceInfo)(unsafe.Pointer(data))}, true, nil
}

// Open adds the device with the given instance ID, present or not, to the set; ok is
// false if there is none. The device is valid until the set is closed.
func (s *DeviceSet) Open(instanceID string) (d Device, ok bool, err error) {
	id, err := windows.UTF16PtrFromString(instanceID)
	if err != nil || instanceID == "" {
		return Device{}, false, nil // "" would open the root of all devices.
	}
	info := &deviceInfo{Size: uint32(unsafe.Sizeof(deviceInfo{}))}
	err = setupDiOpenDeviceInfo(s.set, id, 0, 0, info)
	if errors.Is(err, windows.ERROR_NO_SUCH_DEVINST) || errors.Is(err, windows.ERROR_INVALID_DEVINST_NAME) {
		return Device{}, false, nil
	}
	if err != nil {
		return Device{}, false, fmt.Errorf("open device %s: %w", instanceID, err)
	}
	return Device{set: s.set, info: info}, true, nil
}

// Device is a device of a [DeviceSet].
type Device struct {
	set  windows.DevInfo
	info *deviceInfo
}

// Class returns the device's setup class.
func (d Device) Class() GUID { return d.info.Class }

// Present reports whether the device is present, enabled or not. Without the property
// the configuration manager is asked.
// https://learn.microsoft.com/windows-hardware/drivers/install/devpkey-device-ispresent
func (d Device) Present() (bool, error) {
	p, ok, err := d.Property(IsPresent)
	if err != nil {
		return false, err
	}
	if ok {
		if present, err := p.Bool(); err == nil {
			return present, nil
		}
	}
	_, _, err = d.node()
	if errors.Is(err, errNoSuchDevNode) {
		return false, nil
	}
	return err == nil, err
}

// InstanceID returns the device's instance ID.
// https://learn.microsoft.com/windows/win32/api/setupapi/nf-setupapi-setupdigetdeviceinstanceidw
func (d Device) InstanceID() (string, error) {
	id, err := d.set.DeviceInstanceID((*windows.DevInfoData)(unsafe.Pointer(d.info)))
	if err != nil {
		return "", fmt.Errorf("read a device's instance ID: %w", err)
	}
	return id, nil
}

// Property reads a property; ok is false if the device does not have it.
func (d Device) Property(name PropertyName) (p Property, ok bool, err error) {
	key := name.Key()
	buffer := make([]byte, 512)
	for {
		var size uint32
		err := setupDiGetDeviceProperty(d.set, d.info, &key, &p.Type, &buffer[0], uint32(len(buffer)), &size, 0)
		switch {
		case err == nil && int(size) <= len(buffer):
			p.Data = buffer[:size]
			return p, true, nil
		case errors.Is(err, windows.ERROR_NOT_FOUND):
			return Property{}, false, nil
		case errors.Is(err, windows.ERROR_INSUFFICIENT_BUFFER) && int(size) > len(buffer):
			buffer = make([]byte, size) // It may grow until the next call.
		case err == nil:
			return Property{}, false, fmt.Errorf("read %s: %d bytes in a buffer of %d", name, size, len(buffer))
		default:
			return Property{}, false, fmt.Errorf("read %s: %w", name, err)
		}
	}
}

// Status returns the device's DN_ bits and its CM_PROB_ code or 0. Without the
// properties the configuration manager is asked.
// https://learn.microsoft.com/windows-hardware/drivers/install/devpkey-device-devnodestatus
func (d Device) Status() (status, problem uint32, err error) {
	status, ok, err := d.uint32(DevNodeStatus)
	if err != nil {
		return 0, 0, err
	}
	if ok {
		problem, _, err = d.uint32(ProblemCode)
		return status, problem, err
	}
	return d.node()
}

// node returns the device's status from the configuration manager.
// https://learn.microsoft.com/windows/win32/api/cfgmgr32/nf-cfgmgr32-cm_get_devnode_status
func (d Device) node() (status, problem uint32, err error) {
	if err := available(procCM_Get_DevNode_Status); err != nil {
		return 0, 0, err
	}
	if err := configError(cmGetDevNodeStatus(&status, &problem, d.info.Node, 0)); err != nil {
		return 0, 0, fmt.Errorf("read the device's status: %w", err)
	}
	return status, problem, nil
}

func (d Device) uint32(name PropertyName) (n uint32, ok bool, err error) {
	p, ok, err := d.Property(name)
	if err != nil || !ok {
		return 0, false, err
	}
	if n, err = p.Uint32(); err != nil {
		return 0, false, fmt.Errorf("read %s: %w", name, err)
	}
	return n, true, nil
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
	for {
		var size uint32 // in characters, with the terminator
		err := setupGetInfDriverStoreLocation(inf, 0, nil, &buffer[0], uint32(len(buffer)), &size)
		switch {
		case err == nil:
			return text(buffer), nil
		case errors.Is(err, windows.ERROR_INSUFFICIENT_BUFFER) && int(size) > len(buffer):
			buffer = make([]uint16, size)
		default:
			return "", fmt.Errorf("find %s in the driver store: %w", name, err)
		}
	}
}
