package win32

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestMissingFunctions(t *testing.T) {
	t.Parallel()
	for name, proc := range map[string]*windows.LazyProc{
		"no such DLL":      windows.NewLazySystemDLL("nosuch-directx-nri.dll").NewProc("NoSuchFunction"),
		"no such function": windows.NewLazySystemDLL("kernel32.dll").NewProc("NoSuchFunction"),
	} {
		err := available(proc)
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "NoSuchFunction") {
			t.Errorf("%s: %v", name, err)
		}
	}
	testutil.NoError(t, available(procSetupDiGetDevicePropertyW))
}

// Devices of the other classes are read by the tests of package pnp.
func TestDevicesOfUnknownClass(t *testing.T) {
	t.Parallel()
	testutil.NoError(t, VisitDevices(windows.GUID{Data1: 1}, func(Device) error { return errors.New("a device") }))
}

func TestDriverStoreINFOfMissingFile(t *testing.T) {
	t.Parallel()
	if path, err := DriverStoreINF("oem99999.inf"); err == nil || !strings.Contains(err.Error(), "SetupGetInf") && !strings.Contains(err.Error(), "oem99999.inf") {
		t.Errorf("%q, %v", path, err)
	}
}

func TestRegistryValuesOfAnyLength(t *testing.T) {
	t.Parallel()
	path := fmt.Sprintf(`Software\directx-nri-test-%d`, os.Getpid())
	root, _, err := registry.CreateKey(registry.CURRENT_USER, path, registry.ALL_ACCESS)
	testutil.NoError(t, err)
	lists, _, err := registry.CreateKey(root, "Lists", registry.ALL_ACCESS)
	testutil.NoError(t, err)
	t.Cleanup(func() {
		err := errors.Join(lists.Close(), registry.DeleteKey(registry.CURRENT_USER, path+`\Lists`), registry.DeleteKey(registry.CURRENT_USER, path))
		if err != nil {
			t.Error(err)
		}
	})
	long, longName := strings.Repeat("x", 20_000), strings.Repeat("n", 300)
	for name, texts := range map[string][]string{"a": {"one.dll"}, "b": {long, "two.dll"}, "c": {}, "": {"the default value"}, longName: {"named.dll"}} {
		testutil.NoError(t, lists.SetStringsValue(name, texts))
	}
	testutil.NoError(t, lists.SetDWordValue("d", 7))
	testutil.NoError(t, root.SetBinaryValue("own", nil))

	values, err := driverValues(registry.CURRENT_USER, path, []string{"OWN", "none"}, []string{"lists", "none"})
	if err != nil || len(values) != 7 {
		t.Fatalf("%d values, %v", len(values), err)
	}
	got := map[string]RegistryValue{}
	for _, v := range values {
		got[v.Subkey+v.Name] = v
	}
	if v, ok := got["OWN"]; !ok || len(v.Data) != 0 || v.Type != registry.BINARY {
		t.Errorf("empty value: %+v, %t", v, ok)
	}
	if v := got["listsb"]; v.Type != registry.MULTI_SZ || !bytes.Equal(v.Data, wide(long+"\x00two.dll\x00\x00")) {
		t.Errorf("long value: type %d, %d bytes", v.Type, len(v.Data))
	}
	if v := got["listsd"]; v.Type != registry.DWORD || len(v.Data) != 4 {
		t.Errorf("number: %+v", v)
	}
	if v := got["lists"+longName]; v.Type != registry.MULTI_SZ || !bytes.Equal(v.Data, wide("named.dll\x00\x00")) {
		t.Errorf("value with a long name: %+v", v)
	}
	if values, err := DriverValues(DisplayClass.String()+`\9999`, nil, nil); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "9999") {
		t.Errorf("%v, %v", values, err)
	}
}

func TestAdapters(t *testing.T) {
	t.Parallel()
	adapters, err := Adapters()
	if errors.Is(err, errors.ErrUnsupported) {
		if !strings.Contains(err.Error(), "DXCoreCreateAdapterFactory") {
			t.Errorf("the error does not name the function: %v", err)
		}
		t.Skip(err)
	}
	testutil.NoError(t, err)
	for i, a := range adapters {
		isSame := func(other Adapter) bool { return other.LUID == a.LUID }
		if !a.Graphics && !a.Compute || a.Description == "" || len(a.ReadErrors) > 0 || slices.IndexFunc(adapters, isSame) != i {
			t.Errorf("%+v", a)
		}
	}
}
