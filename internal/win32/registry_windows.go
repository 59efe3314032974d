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

// DriverValues returns values of a driver key: those with the given names in the key itself, and all
// values of the given subkeys. driver is the value of the property [Driver]. With an error, values can
// be missing. The error matches [fs.ErrNotExist] if the key does not exist.
func DriverValues(driver string, names, subkeys []string) ([]RegistryValue, error) {
	return driverValues(registry.LOCAL_MACHINE, classes+driver, names, subkeys)
}

func driverValues(root registry.Key, path string, names, subkeys []string) (values []RegistryValue, err error) {
	key, err := registry.OpenKey(root, path, registry.QUERY_VALUE|registry.ENUMERATE_SUB_KEYS)
	if err != nil {
		return nil, fmt.Errorf("open the registry key %s: %w", path, err)
	}
	defer func() { _ = key.Close() }()
	values, err = readValues(key, "", names)
	errs := []error{err}
	for _, name := range subkeys {
		subkey, err := registry.OpenKey(key, name, registry.QUERY_VALUE)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf(`open the registry key %s\%s: %w`, path, name, err))
			continue
		}
		names, listErr := subkey.ReadValueNames(0)
		list, err := readValues(subkey, name, names)
		values = append(values, list...)
		errs = append(errs, listErr, err, subkey.Close())
	}
	return values, errors.Join(errs...)
}

// readValues reads the values with these names. Names without a value are ignored.
func readValues(key registry.Key, subkey string, names []string) (values []RegistryValue, err error) {
	var errs []error
	for _, name := range names {
		buffer := make([]byte, 1024)
		size, kind, err := key.GetValue(name, buffer)
		for errors.Is(err, registry.ErrShortBuffer) && size > len(buffer) {
			buffer = make([]byte, size) // It may grow until the next read.
			size, kind, err = key.GetValue(name, buffer)
		}
		switch {
		case err == nil:
			values = append(values, RegistryValue{subkey, name, kind, buffer[:size]})
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, fmt.Errorf(`read the registry value %s\%s: %w`, subkey, name, err))
		}
	}
	return values, errors.Join(errs...)
}
