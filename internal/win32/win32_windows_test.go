package win32

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"

	"directx-nri/internal/testutil"
)

func TestDeviceInfoSize(t *testing.T) {
	t.Parallel()
	if theirs, ours := unsafe.Sizeof(windows.DevInfoData{}), unsafe.Sizeof(deviceInfo{}); theirs != ours {
		t.Errorf("SP_DEVINFO_DATA: %d bytes in golang.org/x/sys, %d here", theirs, ours)
	}
}

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
	if err := available(procSetupDiGetDevicePropertyW); err != nil {
		t.Error(err)
	}
}

func TestPresentDevices(t *testing.T) {
	t.Parallel()
	for _, class := range []GUID{DisplayClass(), ComputeAcceleratorClass()} {
		set, err := PresentDevices(class)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; ; i++ {
			device, ok, err := set.Device(i)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			id, err := device.InstanceID()
			if err != nil || id == "" {
				t.Errorf("device %d: %q, %v", i, id, err)
			}
			if present, err := device.Present(); err != nil || !present || device.Class() != class {
				t.Errorf("%s: present %t, class %s, %v", id, present, device.Class(), err)
			}
			for name := DeviceDesc; name <= GPULUID; name++ {
				if _, _, err := device.Property(name); err != nil {
					t.Errorf("%s: %v", id, err)
				}
			}
			if _, _, err := device.Status(); err != nil {
				t.Errorf("%s: %v", id, err)
			}
		}
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestOpenMissingDevice(t *testing.T) {
	t.Parallel()
	set, err := NoDevices()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{`PCI\VEN_FFFF&DEV_FFFF\NOT-THERE`, "no instance ID", "", "a\x00b", `PCI\`, strings.Repeat("x", 1000)} {
		if _, ok, err := set.Open(id); ok || err != nil {
			t.Errorf("%.50q: %t, %v", id, ok, err)
		}
	}
	if _, ok, err := set.Device(0); ok || err != nil {
		t.Errorf("the set is not empty: %t, %v", ok, err)
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	lists, _, err := registry.CreateKey(root, "Lists", registry.ALL_ACCESS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := errors.Join(lists.Close(), registry.DeleteKey(registry.CURRENT_USER, path+`\Lists`), registry.DeleteKey(registry.CURRENT_USER, path))
		if err != nil {
			t.Error(err)
		}
	})
	long, longName := strings.Repeat("x", 20_000), strings.Repeat("n", 300)
	for name, texts := range map[string][]string{"a": {"one.dll"}, "b": {long, "two.dll"}, "c": {}, "": {"the default value"}, longName: {"named.dll"}} {
		if err := lists.SetStringsValue(name, texts); err != nil {
			t.Fatal(err)
		}
	}
	if err := lists.SetDWordValue("d", 7); err != nil {
		t.Fatal(err)
	}
	if err := root.SetBinaryValue("own", nil); err != nil {
		t.Fatal(err)
	}

	key := &DriverKey{name: path, key: root}
	if v, ok, err := key.Value("OWN"); !ok || err != nil || len(v.Data) != 0 || v.Type != registry.BINARY {
		t.Errorf("empty value: %+v, %t, %v", v, ok, err)
	}
	if v, ok, err := key.Value("none"); ok || err != nil {
		t.Errorf("missing value: %+v, %t, %v", v, ok, err)
	}
	values, err := key.Values("lists")
	if err != nil || len(values) != 6 {
		t.Fatalf("%d values, %v", len(values), err)
	}
	got := map[string]RegistryValue{}
	for _, v := range values {
		got[v.Name] = v
	}
	if v := got["b"]; v.Type != registry.MULTI_SZ || !bytes.Equal(v.Data, wide(long+"\x00two.dll\x00\x00")) {
		t.Errorf("long value: type %d, %d bytes", v.Type, len(v.Data))
	}
	if v := got["d"]; v.Type != registry.DWORD || len(v.Data) != 4 {
		t.Errorf("number: %+v", v)
	}
	if v := got[longName]; v.Type != registry.MULTI_SZ || !bytes.Equal(v.Data, wide("named.dll\x00\x00")) {
		t.Errorf("value with a long name: %+v", v)
	}
	if values, err := key.Values("none"); len(values) > 0 || err != nil {
		t.Errorf("missing subkey: %v, %v", values, err)
	}
	if err := key.Close(); err != nil {
		t.Error(err)
	}
}

func TestMissingDriverKey(t *testing.T) {
	t.Parallel()
	key, err := OpenDriverKey(DisplayClass().String() + `\9999`)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "9999") {
		t.Errorf("%v, %v", key, err)
	}
}

func TestDXCore(t *testing.T) {
	t.Parallel()
	dxcore, err := OpenDXCore()
	if errors.Is(err, errors.ErrUnsupported) {
		if !strings.Contains(err.Error(), "DXCoreCreateAdapterFactory") {
			t.Errorf("the error does not name the function: %v", err)
		}
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer dxcore.Close()
	for _, attribute := range []AdapterAttribute{D3D11Graphics(), D3D12Graphics(), D3D12CoreCompute()} {
		adapters, err := dxcore.Adapters(attribute)
		if err != nil {
			t.Error(err)
		}
		for _, adapter := range adapters {
			luid, err := adapter.Uint64(InstanceLUID)
			if err != nil || !adapter.Has(attribute) {
				t.Errorf("%v, %s: %t", err, attribute, adapter.Has(attribute))
			}
			same, err := dxcore.AdapterByLUID(luid)
			if err != nil {
				t.Fatal(err)
			}
			if again, err := same.Uint64(InstanceLUID); err != nil || again != luid {
				t.Errorf("LUID 0x%X, then 0x%X, %v", luid, again, err)
			}
			if description, err := same.Text(DriverDescription); err != nil || description == "" {
				t.Errorf("description %q, %v", description, err)
			}
			if _, err := same.Uint64(DedicatedAdapterMemory); err != nil {
				t.Error(err)
			}
			for _, p := range []AdapterProperty{IsHardware, IsIntegrated, IsDetachable} {
				if _, err := same.Bool(p); err != nil {
					t.Error(err)
				}
			}
			if _, err := same.Uint64(IsHardware); err == nil {
				t.Error("read a property of another size")
			}
			same.Close()
			adapter.Close()
		}
	}
	if adapter, err := dxcore.AdapterByLUID(1<<64 - 2); err == nil {
		adapter.Close()
		t.Error("found a missing adapter")
	}
}

func TestHCSServiceProperties(t *testing.T) {
	t.Parallel()
	answer, err := HCSServiceProperties()
	if err == nil && !strings.HasPrefix(answer, "{") {
		t.Errorf("%q", answer)
	}
	if err != nil && !strings.Contains(err.Error(), "HcsGetServiceProperties") && !strings.Contains(err.Error(), "Host Compute Service") {
		t.Error(err)
	}
}

func TestWindowsVersion(t *testing.T) {
	t.Parallel()
	if v := WindowsVersion(); v.Major < 10 || v.Build == 0 {
		t.Errorf("%+v", v)
	}
}

func TestWatchDevicesEndsWithContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- WatchDevices(ctx, []GUID{DisplayInterface(), ComputeInterface()}, func(NotifyEvent) bool { return true }, func() {})
	}()
	cancel()
	select {
	case err := <-ended:
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Error(err)
		}
		t.Log(err)
	case <-time.After(testutil.Timeout):
		t.Fatal("still watching")
	}
}

func TestCallback(t *testing.T) {
	t.Parallel()
	got := make(chan NotifyEvent, 1)
	number := notifications.add(func(e NotifyEvent) { got <- e })
	defer notifications.remove(number)
	data := event(notifyDeviceInstance, wide(`PCI\VEN_10DE`+"\x00"))
	result, _, _ := syscall.SyscallN(notifyCallback(), //nolint:forbidigo // This is the Win32 layer.
		1, number, 8, uintptr(unsafe.Pointer(&data[0])), uintptr(len(data)))
	if e := <-got; result != 0 || e != (NotifyEvent{Name: `PCI\VEN_10DE`}) {
		t.Errorf("%+v, result %d", e, result)
	}
	syscall.SyscallN(notifyCallback(), 1, number, 9, 0, 4) //nolint:forbidigo // This is the Win32 layer.
	if e := <-got; e != (NotifyEvent{}) {
		t.Errorf("without data: %+v", e)
	}
}
