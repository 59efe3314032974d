package main

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/windows"

	"directx-nri/test/windows/hardware"
)

// https://learn.microsoft.com/windows/win32/api/setupapi/
var (
	setupapi                  = windows.NewLazySystemDLL("setupapi.dll")
	procCreateDeviceInfoList  = setupapi.NewProc("SetupDiCreateDeviceInfoList")
	procDestroyDeviceInfoList = setupapi.NewProc("SetupDiDestroyDeviceInfoList")
	procGetClassDevs          = setupapi.NewProc("SetupDiGetClassDevsW")
	procEnumDeviceInfo        = setupapi.NewProc("SetupDiEnumDeviceInfo")
	procGetDeviceInstanceID   = setupapi.NewProc("SetupDiGetDeviceInstanceIdW")
	procCreateDeviceInfo      = setupapi.NewProc("SetupDiCreateDeviceInfoW")
	procOpenDeviceInfo        = setupapi.NewProc("SetupDiOpenDeviceInfoW")
	procRegisterDeviceInfo    = setupapi.NewProc("SetupDiRegisterDeviceInfo")
	procRemoveDevice          = setupapi.NewProc("SetupDiRemoveDevice")
	procSetDeviceProperty     = setupapi.NewProc("SetupDiSetDevicePropertyW")
	procGetRegistryProperty   = setupapi.NewProc("SetupDiGetDeviceRegistryPropertyW")
	procCreateDevRegKey       = setupapi.NewProc("SetupDiCreateDevRegKeyW")
	procOpenDevRegKey         = setupapi.NewProc("SetupDiOpenDevRegKey")
	procDeleteDevRegKey       = setupapi.NewProc("SetupDiDeleteDevRegKey")
)

// devInfoData is SP_DEVINFO_DATA.
type devInfoData struct {
	size     uint32
	class    windows.GUID
	instance uint32
	reserved uintptr
}

func newDevInfoData() *devInfoData {
	return &devInfoData{size: uint32(unsafe.Sizeof(devInfoData{}))}
}

// set is a device information set.
type set windows.Handle

// call calls a function that returns TRUE on success.
func call(proc *windows.LazyProc, args ...uintptr) error {
	if ok, _, err := proc.Call(args...); ok == 0 {
		return fmt.Errorf("%s: %w", proc.Name, err)
	}
	return nil
}

// openSet calls a function that returns a set.
func openSet(proc *windows.LazyProc, args ...uintptr) (set, error) {
	handle, _, err := proc.Call(args...)
	if windows.Handle(handle) == windows.InvalidHandle {
		return 0, fmt.Errorf("%s: %w", proc.Name, err)
	}
	return set(handle), nil
}

func (s set) close() { _, _, _ = procDestroyDeviceInfoList.Call(uintptr(s)) }

const allClasses = 4 // DIGCF_ALLCLASSES

// removeOthers removes the devices that are not in keep.
func removeOthers(keep []hardware.Device) (events []event, err error) {
	s, err := openSet(procGetClassDevs, 0, 0, 0, allClasses)
	if err != nil {
		return nil, err
	}
	defer s.close()
	for i := 0; ; i++ {
		info := newDevInfoData()
		err := call(procEnumDeviceInfo, uintptr(s), uintptr(i), uintptr(unsafe.Pointer(info)))
		if errors.Is(err, windows.ERROR_NO_MORE_ITEMS) {
			return events, nil
		}
		if err != nil {
			return events, err
		}
		id, err := s.instanceID(info)
		if err != nil {
			return events, err
		}
		if isOneOf(id, info.class, keep) {
			continue
		}
		if err := s.removeDriver(info); err != nil {
			return events, fmt.Errorf("device %s: %w", id, err)
		}
		if err := call(procRemoveDevice, uintptr(s), uintptr(unsafe.Pointer(info))); err != nil {
			return events, fmt.Errorf("device %s: %w", id, err)
		}
		events = append(events, interfaceEvent(interfaceRemoval, info.class.String(), id), instanceEvent(instanceRemoved, id))
	}
}

func isOneOf(id string, class windows.GUID, devices []hardware.Device) bool {
	for _, d := range devices {
		if strings.EqualFold(d.InstanceID, id) && strings.EqualFold(d.Class, class.String()) {
			return true
		}
	}
	return false
}

func (s set) instanceID(info *devInfoData) (string, error) {
	var buffer [512]uint16
	err := call(procGetDeviceInstanceID, uintptr(s), uintptr(unsafe.Pointer(info)), uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)), 0)
	return windows.UTF16ToString(buffer[:]), err
}

// install creates a device, or changes the one with its instance ID.
func install(d hardware.Device) ([]event, error) {
	guid, err := windows.GUIDFromString(d.Class)
	if err != nil {
		return nil, fmt.Errorf("class %s: %w", d.Class, err)
	}
	id, err := windows.UTF16PtrFromString(d.InstanceID)
	if err != nil {
		return nil, err
	}
	s, err := openSet(procCreateDeviceInfoList, uintptr(unsafe.Pointer(&guid)), 0)
	if err != nil {
		return nil, err
	}
	defer s.close()
	info := newDevInfoData()
	isNew := call(procOpenDeviceInfo, uintptr(s), uintptr(unsafe.Pointer(id)), 0, 0, uintptr(unsafe.Pointer(info))) != nil
	if isNew {
		if err := call(procCreateDeviceInfo, uintptr(s), uintptr(unsafe.Pointer(id)), uintptr(unsafe.Pointer(&guid)), 0, 0, 0, uintptr(unsafe.Pointer(info))); err != nil {
			return nil, err
		}
	}
	for _, p := range properties(d) {
		if err := s.setProperty(info, p); err != nil {
			return nil, err
		}
	}
	if isNew {
		// Only a registered device is present and can have a driver key.
		if err := call(procRegisterDeviceInfo, uintptr(s), uintptr(unsafe.Pointer(info)), 0, 0, 0, 0); err != nil {
			return nil, err
		}
	}
	driverKey, err := s.driver(info, d.Driver)
	if err != nil {
		return nil, err
	}
	for _, p := range append([]hardware.Property{text(deviceFormat, 11, driverKey)}, d.Odd...) {
		if err := s.setProperty(info, p); err != nil {
			return nil, err
		}
	}
	var events []event
	if isNew {
		events = append(events, instanceEvent(instanceEnumerated, d.InstanceID))
		if d.Problem == 0 {
			events = append(events, interfaceEvent(interfaceArrival, d.Class, d.InstanceID))
		}
	}
	return append(events, instanceEvent(instanceStarted, d.InstanceID)), nil
}

// devPropKey is DEVPROPKEY.
type devPropKey struct {
	format windows.GUID
	id     uint32
}

func (s set) setProperty(info *devInfoData, p hardware.Property) error {
	format, err := windows.GUIDFromString(p.Format)
	if err != nil {
		return fmt.Errorf("property %s %d: %w", p.Format, p.ID, err)
	}
	key := devPropKey{format, p.ID}
	data := unsafe.SliceData(p.Data)
	err = call(procSetDeviceProperty, uintptr(s), uintptr(unsafe.Pointer(info)), uintptr(unsafe.Pointer(&key)), uintptr(p.Type), uintptr(unsafe.Pointer(data)), uintptr(len(p.Data)), 0)
	runtime.KeepAlive(p.Data)
	if p.Type == typeEmpty && errors.Is(err, windows.ERROR_NOT_FOUND) {
		return nil // There is nothing to delete.
	}
	if err != nil {
		return fmt.Errorf("property %s %d: %w", p.Format, p.ID, err)
	}
	return nil
}
