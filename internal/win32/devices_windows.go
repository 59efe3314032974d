package win32

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// errNoSuchDevNode is CR_NO_SUCH_DEVNODE: the device is not there now.
const errNoSuchDevNode = ConfigError(0x0D)

// DeviceSet is a list of devices that Windows keeps for us. Its methods must not be
// called by several goroutines at once.
type DeviceSet struct {
	set windows.DevInfo
}

// PresentDevices returns the devices of class that are present now. Disabled ones
// are; unplugged ones are not. A class that this Windows does not know has none.
// The caller closes the set.
// https://learn.microsoft.com/windows/win32/api/setupapi/nf-setupapi-setupdigetclassdevsexw
func PresentDevices(class GUID) (*DeviceSet, error) {
	set, err := windows.SetupDiGetClassDevsEx((*windows.GUID)(&class), "", 0, windows.DIGCF_PRESENT, 0, "")
	if errors.Is(err, windows.ERROR_INVALID_CLASS) {
		return NoDevices()
	}
	if err != nil {
		return nil, fmt.Errorf("list the devices of class %s: %w", class, err)
	}
	return &DeviceSet{set: set}, nil
}

// NoDevices returns a set to [DeviceSet.Open] devices in. The caller closes it.
// https://learn.microsoft.com/windows/win32/api/setupapi/nf-setupapi-setupdicreatedeviceinfolistexw
func NoDevices() (*DeviceSet, error) {
	set, err := windows.SetupDiCreateDeviceInfoListEx(nil, 0, "")
	if err != nil {
		return nil, fmt.Errorf("make a list of devices: %w", err)
	}
	return &DeviceSet{set: set}, nil
}

// Close frees what the set's devices hold.
func (s *DeviceSet) Close() error {
	if err := s.set.Close(); err != nil {
		return fmt.Errorf("close a list of devices: %w", err)
	}
	return nil
}

// Device returns the set's device at index, counted from 0; ok is false behind the
// last one. The device may be asked until the set is closed.
func (s *DeviceSet) Device(index int) (d Device, ok bool, err error) {
	data, err := s.set.EnumDeviceInfo(index)
	if errors.Is(err, windows.ERROR_NO_MORE_ITEMS) {
		return Device{}, false, nil
	}
	if err != nil {
		return Device{}, false, fmt.Errorf("read entry %d of a list of devices: %w", index, err)
	}
	return Device{set: s.set, info: (*deviceInfo)(unsafe.Pointer(data))}, true, nil
}

// Open adds the device with an instance ID to the set; ok is false when Windows
// knows of none, present or not. The device may be asked until the set is closed.
func (s *DeviceSet) Open(instanceID string) (d Device, ok bool, err error) {
	id, err := windows.UTF16PtrFromString(instanceID)
	if err != nil || instanceID == "" {
		return Device{}, false, nil // Nothing is called that, and "" would open the root of all devices.
	}
	info := &deviceInfo{Size: uint32(unsafe.Sizeof(deviceInfo{}))}
	err = setupDiOpenDeviceInfo(s.set, id, 0, 0, info)
	if errors.Is(err, windows.ERROR_NO_SUCH_DEVINST) || errors.Is(err, windows.ERROR_INVALID_DEVINST_NAME) {
		return Device{}, false, nil
	}
	if err != nil {
		return Device{}, false, fmt.Errorf("look for device %s: %w", instanceID, err)
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

// Present tells whether the device is there: Windows also knows of those that were
// there once. Disabled ones are there. It is a property, as the status is; where it
// is none that can be read, the configuration manager is asked.
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

// Property reads one of the device's properties; ok is false when the device does
// not have it.
func (d Device) Property(name PropertyName) (p Property, ok bool, err error) {
	key := name.Key()
	buffer := make([]byte, 512) // Enough for most of them.
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
			buffer = make([]byte, size) // It may have grown again when asked anew.
		case err == nil:
			return Property{}, false, fmt.Errorf("read %s: %d bytes in a buffer of %d", name, size, len(buffer))
		default:
			return Property{}, false, fmt.Errorf("read %s: %w", name, err)
		}
	}
}

// Status returns the device's DN_ bits and its CM_PROB_ code, 0 for none.
//
// They are read as properties, as all else is, and asked of the configuration
// manager where there are no such properties.
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

// node asks the configuration manager for the device's status.
// https://learn.microsoft.com/windows/win32/api/cfgmgr32/nf-cfgmgr32-cm_get_devnode_status
func (d Device) node() (status, problem uint32, err error) {
	if err := available(procCM_Get_DevNode_Status); err != nil {
		return 0, 0, err
	}
	if err := configured(cmGetDevNodeStatus(&status, &problem, d.info.Node, 0)); err != nil {
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

// DriverStoreINF returns the path in the driver store of an INF file that is
// installed under name, such as `oem12.inf`.
// https://learn.microsoft.com/windows/win32/api/setupapi/nf-setupapi-setupgetinfdriverstorelocationw
func DriverStoreINF(name string) (string, error) {
	if err := available(procSetupGetInfDriverStoreLocationW); err != nil {
		return "", err
	}
	inf, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return "", fmt.Errorf("look for %q in the driver store: %w", name, err)
	}
	buffer := make([]uint16, windows.MAX_PATH)
	for {
		var size uint32 // In characters, the terminator among them.
		err := setupGetInfDriverStoreLocation(inf, 0, nil, &buffer[0], uint32(len(buffer)), &size)
		switch {
		case err == nil:
			return text(buffer), nil
		case errors.Is(err, windows.ERROR_INSUFFICIENT_BUFFER) && int(size) > len(buffer):
			buffer = make([]uint16, size)
		default:
			return "", fmt.Errorf("look for %s in the driver store: %w", name, err)
		}
	}
}
