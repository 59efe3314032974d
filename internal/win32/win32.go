// Package win32 calls Windows' DLLs: devices, their drivers, DXCore, the Host Compute
// Service and the version of Windows.
//
// It only translates. The ABI (structures, COM interfaces, encoded values) is in files
// that build everywhere, so that its tests run everywhere.
//
// The error for a function that this Windows does not have names it and matches
// [errors.ErrUnsupported]. DLLs are loaded from Windows' system directory only.
package win32

//go:generate go tool -modfile=../../tools/go.mod mkwinsyscall -output zsyscall_windows.go syscall_windows.go

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unicode/utf16"
)

// GUID is a globally unique identifier.
// https://learn.microsoft.com/windows/win32/api/guiddef/ns-guiddef-guid
type GUID struct {
	Data1 uint32
	Data2 uint16
	Data3 uint16
	Data4 [8]byte
}

// String returns g in the registry's notation: in braces and lower case.
func (g GUID) String() string {
	return fmt.Sprintf("{%08x-%04x-%04x-%x-%x}", g.Data1, g.Data2, g.Data3, g.Data4[:2], g.Data4[2:])
}

// DisplayClass is the setup class of display adapters.
// https://learn.microsoft.com/windows-hardware/drivers/install/system-defined-device-setup-classes-available-to-vendors
func DisplayClass() GUID {
	return GUID{0x4d36e968, 0xe325, 0x11ce, [8]byte{0xbf, 0xc1, 0x08, 0x00, 0x2b, 0xe1, 0x03, 0x18}}
}

// ComputeAcceleratorClass is the setup class of compute accelerators.
// https://learn.microsoft.com/windows-hardware/drivers/install/system-defined-device-setup-classes-available-to-vendors
func ComputeAcceleratorClass() GUID {
	return GUID{0xf01a9d53, 0x3ff6, 0x48d2, [8]byte{0x9f, 0x97, 0xc8, 0xa7, 0x00, 0x4b, 0xe1, 0x0c}}
}

// DisplayInterface is the interface class of all adapters, compute-only ones included:
// GUID_DISPLAY_DEVICE_ARRIVAL.
// https://learn.microsoft.com/windows-hardware/drivers/install/guid-display-device-arrival
func DisplayInterface() GUID {
	return GUID{0x1ca05180, 0xa699, 0x450a, [8]byte{0x9a, 0x0c, 0xde, 0x4f, 0xbe, 0x3d, 0xdd, 0x89}}
}

// ComputeInterface is the interface class of adapters that compute:
// GUID_COMPUTE_DEVICE_ARRIVAL of the Windows Driver Kit's d3dkmthk.h, which is not
// documented.
// https://github.com/winsiderss/systeminformer (phnt's d3dkmthk.h)
func ComputeInterface() GUID {
	return GUID{0x1024e4c9, 0x47c9, 0x48d3, [8]byte{0xb4, 0xa8, 0xf9, 0xdf, 0x78, 0x52, 0x3b, 0x53}}
}

// deviceInfo is SP_DEVINFO_DATA.
// https://learn.microsoft.com/windows/win32/api/setupapi/ns-setupapi-sp_devinfo_data
type deviceInfo struct {
	Size     uint32
	Class    GUID
	Node     uint32
	Reserved uintptr
}

// HRESULT is the error of a COM call.
// https://learn.microsoft.com/openspecs/windows_protocols/ms-erref/0642cb2f-2075-4469-918c-4441e69c548a
type HRESULT uint32

func (h HRESULT) Error() string { return fmt.Sprintf("HRESULT 0x%08X", uint32(h)) }

// Is makes E_NOTIMPL and E_NOINTERFACE match [errors.ErrUnsupported].
func (h HRESULT) Is(target error) bool {
	return target == errors.ErrUnsupported && (h == 0x80004001 || h == 0x80004002)
}

// hresultError returns nil for a result that is a success.
func hresultError(result int32) error {
	if result >= 0 {
		return nil
	}
	return HRESULT(uint32(result))
}

// ConfigError is the error of a call of the configuration manager.
// https://learn.microsoft.com/windows/win32/api/cfgmgr32/nf-cfgmgr32-cm_mapcrtowin32err
type ConfigError uint32

func (c ConfigError) Error() string {
	return fmt.Sprintf("configuration manager error 0x%02X", uint32(c))
}

// Is makes CR_CALL_NOT_IMPLEMENTED match [errors.ErrUnsupported].
func (c ConfigError) Is(target error) bool {
	return target == errors.ErrUnsupported && c == 0x34
}

// configError returns nil for CR_SUCCESS.
func configError(result uint32) error {
	if result == 0 {
		return nil
	}
	return ConfigError(result)
}

// text decodes UTF-16 up to the first NUL or the end.
func text(units []uint16) string {
	if end := slices.Index(units, 0); end >= 0 {
		units = units[:end]
	}
	return string(utf16.Decode(units))
}

// units returns little-endian data as UTF-16 code units.
func units(data []byte) []uint16 {
	u := make([]uint16, len(data)/2)
	for i := range u {
		u[i] = binary.LittleEndian.Uint16(data[2*i:])
	}
	return u
}
