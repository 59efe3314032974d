package win32

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/windows/registry"
)

// classes is the key of all driver keys.
// https://learn.microsoft.com/windows-hardware/drivers/install/hklm-system-currentcontrolset-control-registry-tree
const classes = `SYSTEM\CurrentControlSet\Control\Class\`

// RegistryValue is a registry value.
type RegistryValue struct {
	Name string
	// Type is one of the REG_ types.
	// https://learn.microsoft.com/windows/win32/sysinfo/registry-value-types
	Type uint32
	Data []byte
}

// DriverKey is the registry key of a device's driver.
type DriverKey struct {
	name string
	key  registry.Key
}

// OpenDriverKey opens a driver key by the value of the property [Driver]. The caller
// closes it. The error matches [fs.ErrNotExist] if there is none.
func OpenDriverKey(name string) (*DriverKey, error) {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, classes+name, registry.QUERY_VALUE|registry.ENUMERATE_SUB_KEYS)
	if err != nil {
		return nil, fmt.Errorf(`open the registry key HKLM\%s%s: %w`, classes, name, err)
	}
	return &DriverKey{name: name, key: key}, nil
}

// Close closes the key.
func (k *DriverKey) Close() error {
	if err := k.key.Close(); err != nil {
		return fmt.Errorf(`close the registry key HKLM\%s%s: %w`, classes, k.name, err)
	}
	return nil
}

// Value reads a value of the key itself; ok is false if there is none.
func (k *DriverKey) Value(name string) (v RegistryValue, ok bool, err error) {
	return readValue(k.key, name)
}

// Values reads the values of a subkey, in Windows' order, and none if there is no such
// subkey. On an error it returns those before it.
func (k *DriverKey) Values(subkey string) (values []RegistryValue, err error) {
	key, err := registry.OpenKey(k.key, subkey, registry.QUERY_VALUE)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf(`open the registry key HKLM\%s%s\%s: %w`, classes, k.name, subkey, err)
	}
	defer func() { _ = key.Close() }()
	names, err := key.ReadValueNames(0)
	if err != nil {
		return nil, fmt.Errorf(`list the values of HKLM\%s%s\%s: %w`, classes, k.name, subkey, err)
	}
	for _, name := range names {
		v, ok, err := readValue(key, name)
		if err != nil {
			return values, fmt.Errorf("%s: %w", subkey, err)
		}
		if ok { // Otherwise it has just been deleted.
			values = append(values, v)
		}
	}
	return values, nil
}

// readValue reads a value of any size; ok is false if there is none.
func readValue(key registry.Key, name string) (v RegistryValue, ok bool, err error) {
	buffer := make([]byte, 1024)
	for {
		size, kind, err := key.GetValue(name, buffer)
		switch {
		case err == nil:
			return RegistryValue{Name: name, Type: kind, Data: buffer[:size]}, true, nil
		case errors.Is(err, fs.ErrNotExist):
			return RegistryValue{}, false, nil
		case errors.Is(err, registry.ErrShortBuffer) && size > len(buffer):
			buffer = make([]byte, size) // It may grow until the next read.
		default:
			return RegistryValue{}, false, fmt.Errorf("%s: read the registry value: %w", name, err)
		}
	}
}
