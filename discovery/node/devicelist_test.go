package node

import (
	"reflect"
	"testing"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestDeviceList(t *testing.T) {
	t.Parallel()
	zero, bus := 0, uint32(7)
	list := []discovery.Device{
		{
			InstanceID: `PCI\VEN_10DE&DEV_1EB8\4&1CFCA9AB&0&0001`, Description: "NVIDIA \"T4\"\n{\"key\":\"", VendorID: pci.VendorNVIDIA,
			LocationPath: "PCIROOT(0)#PCI(1B00)", LUID: 7, DedicatedMemory: 15 << 30, NUMANode: &zero, BusNumber: &bus, SupportsDisplay: true,
			Health: discovery.Health{Reason: "hot"}, System32: []discovery.RuntimeFile{{Source: "a.dll", Destination: "b.dll"}},
			DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg", ContainerPath: "/dev/dxg"}}, Libraries: []discovery.Library{{Source: "/usr/lib/wsl", Destination: "/usr/lib/wsl"}},
		},
		{InstanceID: `PCI\VEN_10DE&DEV_1EB8\4&1CFCA9AB&0&0002`},
	}
	source := CompiledInventory(t.TempDir())
	testutil.NoError(t, source.Write(list))
	if got, err := source.Devices(t.Context()); err != nil || !reflect.DeepEqual(got, list) {
		t.Errorf("got %+v, %v", got, err)
	}
	testutil.NoError(t, source.Write(nil))
	if got, err := source.Devices(t.Context()); err != nil || got == nil || len(got) != 0 {
		t.Errorf("no devices: %v, %v; want an empty list", got, err)
	}
	for range 2 {
		testutil.NoError(t, source.Remove())
	}
	if _, err := source.Devices(t.Context()); err == nil {
		t.Error("no error without a file")
	}
}

func TestDamagedDeviceList(t *testing.T) {
	t.Parallel()
	for _, damaged := range []string{"", "null", `[{"InstanceID":"A"}`, `{"devices":[]}`, "[][]", `[{"InstanceID":1}]`} {
		file := CompiledInventory(t.TempDir())
		testutil.WriteFile(t, file.Path(), damaged, 0o600)
		_, err := file.Devices(t.Context())
		testutil.CheckError(t, damaged, err, file.Path())
	}
}
