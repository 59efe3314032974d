package win32

import (
	"testing"
	"unsafe"
)

// The numbers are from a 64-bit C compiler with mingw-w64's headers.
func TestLayout(t *testing.T) {
	t.Parallel()
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("Windows nodes have 64 bits")
	}
	var (
		id  GUID
		key propertyKey
	)
	for name, test := range map[string]struct{ got, want uintptr }{
		"GUID":           {unsafe.Sizeof(id), 16},
		"GUID alignment": {unsafe.Alignof(id), 4},
		"GUID.Data2":     {unsafe.Offsetof(id.Data2), 4},
		"GUID.Data3":     {unsafe.Offsetof(id.Data3), 6},
		"GUID.Data4":     {unsafe.Offsetof(id.Data4), 8},
		"GUID's value":   {uintptr(DisplayClass().Data1), 0x4d36e968},
		"DEVPROPKEY":     {unsafe.Sizeof(key), 20},
		"DEVPROPKEY.pid": {unsafe.Offsetof(key.ID), 16},
	} {
		if test.got != test.want {
			t.Errorf("%s: %d, want %d", name, test.got, test.want)
		}
	}
}

func TestPropertyKeysAreUnique(t *testing.T) {
	t.Parallel()
	seen := map[propertyKey]PropertyName{}
	for _, name := range []PropertyName{
		DeviceDesc, HardwareIDs, Driver, Manufacturer, BusNumber, Address, LocationPaths, DriverVersion, DriverINF, NUMANode, DevNodeStatus, ProblemCode, GPULUID,
	} {
		key := name.key()
		if other, ok := seen[key]; ok || key == (propertyKey{}) {
			t.Errorf("%s has the key %v of %s", name, key, other)
		}
		seen[key] = name
	}
}

func TestHRESULTError(t *testing.T) {
	t.Parallel()
	if err := hresultError(1); err != nil { // S_FALSE
		t.Error(err)
	}
	if err := hresultError(-2147024809); err == nil || err.Error() != "HRESULT 0x80070057" {
		t.Error(err)
	}
}

func TestVersionString(t *testing.T) {
	t.Parallel()
	for want, v := range map[string]Version{
		"Windows Server 2022 Datacenter 21H2 (build 20348.2113)": {20348, 2113, product("Windows Server 2022 Datacenter", 20348), "21H2"},
		"Windows (build 17763.0)":                                {Build: 17763},
		"Windows 10 Pro (build 19045.0)":                         {Build: 19045, Product: product("Windows 10 Pro", 19045)},
		"Windows 11 Pro (build 22631.0)":                         {Build: 22631, Product: product("Windows 10 Pro", 22631)},
	} {
		if got := v.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
