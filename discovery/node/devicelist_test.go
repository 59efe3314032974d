package node

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

func device(n int) discovery.Device {
	zero, bus, address := 0, uint32(n), uint32(0)
	d := discovery.Device{
		InstanceID:  fmt.Sprintf(`PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\4&1CFCA9AB&0&%04X`, n),
		Description: "NVIDIA \"T4\"\n{\"key\":\"", VendorID: pci.VendorNVIDIA, LocationPath: fmt.Sprintf("PCIROOT(0)#PCI(%04X)", n),
		UUID: "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", LUID: 7, DriverVersion: "31.0.15.5222", DriverStorePath: `C:\Windows\System32\DriverStore\FileRepository\nv`,
		DedicatedMemory: 15 << 30, NUMANode: &zero, BusNumber: &bus, Address: &address, Integrated: true, Detachable: true, SupportsDisplay: true, SupportsCompute: true,
		Health:      discovery.Health{Reason: "hot"},
		DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg", ContainerPath: "/dev/dxg"}}, Libraries: []discovery.Library{{Source: "/usr/lib/wsl", Destination: "/usr/lib/wsl"}},
	}
	for i := range 40 {
		name := fmt.Sprintf("nvfile%02d.dll", i)
		d.System32 = append(d.System32, discovery.RuntimeFile{Source: name, Destination: name})
	}
	d.SysWOW64 = d.System32[:10]
	return d
}

func devices(n int) (list []discovery.Device) {
	for i := range n {
		list = append(list, device(i))
	}
	return list
}

func TestDeviceList(t *testing.T) {
	t.Parallel()
	stateDir, list := t.TempDir(), devices(3)
	source := CompiledInventory(stateDir)
	if _, err := source.Devices(t.Context()); err == nil {
		t.Error("no error without a file")
	}
	testutil.NoError(t, source.Write(list))
	if got, err := source.Devices(t.Context()); err != nil || !reflect.DeepEqual(got, list) {
		t.Errorf("got %+v, %v", got, err)
	}
	first, last := list[0].InstanceID, list[2].InstanceID
	for name, test := range map[string]struct {
		ids  []string
		want []discovery.Device
	}{
		"none":        {nil, nil},
		"unknown":     {[]string{"PCI", first[:len(first)-1], first + "0", ""}, nil},
		"first":       {[]string{first}, list[:1]},
		"in any case": {[]string{strings.ToLower(last)}, list[2:]},
		"several":     {[]string{first, "no", last}, []discovery.Device{list[0], list[2]}},
		"one twice":   {[]string{last, strings.ToLower(last)}, list[2:]},
	} {
		if got, err := source.Find(t.Context(), test.ids); err != nil || len(got)+len(test.want) > 0 && !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, err, test.want)
		}
	}
	testutil.NoError(t, source.Write(nil))
	if got, err := source.Devices(t.Context()); err != nil || got == nil || len(got) != 0 {
		t.Errorf("no devices: %v, %v; want an empty list", got, err)
	}
	for range 2 {
		testutil.NoError(t, source.Remove())
	}
}

func TestDamagedDeviceList(t *testing.T) {
	t.Parallel()
	data, err := encode(devices(2))
	testutil.NoError(t, err)
	for name, damaged := range map[string][]byte{
		"empty":          nil,
		"no devices":     []byte(`{"format":4}`),
		"torn":           data[:len(data)-100],
		"foreign":        []byte("kind: Inventory\n"),
		"another format": bytes.Replace(data, []byte(`"format":4`), []byte(`"format":3`), 1),
		"broken device":  bytes.Replace(data, []byte(`{"InstanceID"`), []byte(`["InstanceID"`), 1),
		"two documents":  append(slices.Clone(data), data...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stateDir := t.TempDir()
			file := CompiledInventory(stateDir)
			testutil.WriteFile(t, file.Path(), string(damaged), 0o600)
			_, err := file.Devices(t.Context())
			testutil.CheckError(t, "read", err, file.Path())
		})
	}
}
