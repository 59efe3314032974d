// Package win32 calls functions of Windows' DLLs, for devices, their drivers, DXCore, the Host Compute
// Service and the version of Windows. It contains no decisions.
//
// Encoded values are in files that are also built on Linux, so that their tests run there.
//
// If this Windows does not have a function, the error names the function and matches
// [errors.ErrUnsupported]. DLLs are loaded only from Windows' system directory.
package win32

//go:generate go tool -modfile=../../tools/go.mod mkwinsyscall -output zsyscall_windows.go syscall_windows.go

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf16"
)

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
