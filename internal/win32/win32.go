// Package win32 calls functions of Windows' DLLs, for devices, their drivers, DXCore, the Host Compute
// Service and the version of Windows. It contains no decisions.
//
// Structures and encoded values are in files that are also built on Linux, so that their tests run
// there.
//
// If this Windows does not have a function, the error names the function and matches
// [errors.ErrUnsupported]. DLLs are loaded only from Windows' system directory.
package win32

//go:generate go tool -modfile=../../tools/go.mod mkwinsyscall -output zsyscall_windows.go syscall_windows.go

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
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

// parseGUID parses a constant. The package guid of go-winio is not used because it imports crypto,
// which makes the start of the shim slower.
func parseGUID(text string) GUID {
	data, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	if err != nil {
		panic(err) //nolint:forbidigo // A constant, which each test parses.
	}
	order := binary.BigEndian
	return GUID{order.Uint32(data), order.Uint16(data[4:]), order.Uint16(data[6:]), [8]byte(data[8:])}
}

// DisplayClass is the setup class of display adapters.
// https://learn.microsoft.com/windows-hardware/drivers/install/system-defined-device-setup-classes-available-to-vendors
func DisplayClass() GUID { return parseGUID("4d36e968-e325-11ce-bfc1-08002be10318") }

// ComputeAcceleratorClass is the setup class of compute accelerators.
// https://learn.microsoft.com/windows-hardware/drivers/install/system-defined-device-setup-classes-available-to-vendors
func ComputeAcceleratorClass() GUID { return parseGUID("f01a9d53-3ff6-48d2-9f97-c8a7004be10c") }

// hresultError returns the error of an HRESULT, nil for a success.
// https://learn.microsoft.com/openspecs/windows_protocols/ms-erref/0642cb2f-2075-4469-918c-4441e69c548a
func hresultError(result int32) error {
	if result >= 0 {
		return nil
	}
	return fmt.Errorf("HRESULT 0x%08X", uint32(result))
}

// Strings decodes NUL-terminated UTF-16 strings, up to the first empty string or the end of data. The
// terminators at the end can be missing. Invalid UTF-16 is decoded as [utf8.RuneError].
func Strings(data []byte) (list []string, err error) {
	if len(data)%2 != 0 {
		return nil, fmt.Errorf("%d bytes of UTF-16 text", len(data))
	}
	units := make([]uint16, len(data)/2)
	for i := range units {
		units[i] = binary.LittleEndian.Uint16(data[2*i:])
	}
	for text := range strings.SplitSeq(string(utf16.Decode(units)), "\x00") {
		if text == "" {
			break
		}
		list = append(list, text)
	}
	return list, nil
}
