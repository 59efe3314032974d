package main

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"

	"directx-nri/test/windows/hardware"
)

const (
	dicsFlagGlobal = 1 // DICS_FLAG_GLOBAL
	diregDriver    = 2 // DIREG_DRV
	spdrpDriver    = 9 // SPDRP_DRIVER
)

// subkeys are those of the driver key that tests write.
var subkeys = []string{"CopyToVmOverwrite", "CopyToVmWhenNewer", "CopyToVmOverwriteWow64", "CopyToVmWhenNewerWow64"}

// driver replaces the values of a device's driver key and returns the key's name, empty
// without a driver.
func (s set) driver(info *devInfoData, d *hardware.Driver) (string, error) {
	if d == nil {
		return "", s.removeDriver(info)
	}
	key, err := openKey(procCreateDevRegKey, uintptr(s), uintptr(unsafe.Pointer(info)), dicsFlagGlobal, 0, diregDriver, 0, 0)
	if err != nil {
		return "", err
	}
	defer key.Close()
	if err := empty(key); err != nil {
		return "", fmt.Errorf("empty the driver key: %w", err)
	}
	for _, v := range d.Values {
		if err := write(key, v); err != nil {
			return "", fmt.Errorf("registry value %s\\%s: %w", v.Subkey, v.Name, err)
		}
	}
	var name [512]uint16
	err = call(procGetRegistryProperty, uintptr(s), uintptr(unsafe.Pointer(info)), spdrpDriver, 0, uintptr(unsafe.Pointer(&name[0])), unsafe.Sizeof(name), 0)
	return windows.UTF16ToString(name[:]), err
}

// removeDriver removes the driver key of a device, if it has one.
func (s set) removeDriver(info *devInfoData) error {
	key, err := openKey(procOpenDevRegKey, uintptr(s), uintptr(unsafe.Pointer(info)), dicsFlagGlobal, 0, diregDriver, registry.ALL_ACCESS)
	if err != nil {
		return nil // There is no key.
	}
	// Wine removes an empty key only.
	err = empty(key)
	if err := errors.Join(err, key.Close()); err != nil {
		return fmt.Errorf("empty the driver key: %w", err)
	}
	return call(procDeleteDevRegKey, uintptr(s), uintptr(unsafe.Pointer(info)), dicsFlagGlobal, 0, diregDriver)
}

// openKey calls a function that returns a registry key.
func openKey(proc *windows.LazyProc, args ...uintptr) (registry.Key, error) {
	handle, _, err := proc.Call(args...)
	if windows.Handle(handle) == windows.InvalidHandle {
		return 0, fmt.Errorf("%s: %w", proc.Name, err)
	}
	return registry.Key(handle), nil
}

// empty removes the values and subkeys of a driver key.
func empty(key registry.Key) error {
	for _, name := range subkeys {
		if err := registry.DeleteKey(key, name); err != nil && !errors.Is(err, registry.ErrNotExist) {
			return err
		}
	}
	names, err := key.ReadValueNames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := key.DeleteValue(name); err != nil {
			return err
		}
	}
	return nil
}

var procRegSetValueEx = windows.NewLazySystemDLL("advapi32.dll").NewProc("RegSetValueExW")

// write sets a value. Package registry cannot set one whose content does not match its type.
func write(key registry.Key, v hardware.Value) error {
	if v.Subkey != "" {
		subkey, _, err := registry.CreateKey(key, v.Subkey, registry.SET_VALUE)
		if err != nil {
			return err
		}
		defer subkey.Close()
		key = subkey
	}
	name, err := windows.UTF16PtrFromString(v.Name)
	if err != nil {
		return err
	}
	data := unsafe.SliceData(v.Data)
	if status, _, _ := procRegSetValueEx.Call(uintptr(key), uintptr(unsafe.Pointer(name)), 0, uintptr(v.Type), uintptr(unsafe.Pointer(data)), uintptr(len(v.Data))); status != 0 {
		return windows.Errno(status)
	}
	return nil
}
