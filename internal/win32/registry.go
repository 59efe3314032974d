package win32

// RegistryValue is a value of a driver key.
type RegistryValue struct {
	// Subkey is the subkey of the driver key, "" for the driver key itself. It is
	// case-insensitive, as is Name.
	Subkey, Name string
	// Type is one of the REG_ types.
	// https://learn.microsoft.com/windows/win32/sysinfo/registry-value-types
	Type uint32
	Data []byte
}
