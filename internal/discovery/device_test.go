package discovery

import (
	"testing"
)

func TestKind(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		device Device
		want   Kind
	}{
		{Device{SupportsDisplay: true, SupportsCompute: true}, KindDisplay},
		{Device{SupportsDisplay: true}, KindDisplay},
		{Device{SupportsCompute: true}, KindCompute},
		{Device{}, KindNone},
		{Device{Software: true, SupportsDisplay: true, SupportsCompute: true}, KindNone},
	} {
		if got := test.device.Kind(); got != test.want {
			t.Errorf("%+v: %q, want %q", test.device, got, test.want)
		}
	}
}

func TestPCIAddress(t *testing.T) {
	t.Parallel()
	bus, address := uint32(0xFF00021B), uint32(3<<16|1)
	segment, number, device, function, ok := Device{BusNumber: &bus, Address: &address}.PCIAddress()
	if !ok || segment != 2 || number != 0x1B || device != 3 || function != 1 {
		t.Errorf("%X:%X:%X.%X, %t", segment, number, device, function, ok)
	}
	for _, d := range []Device{{}, {BusNumber: &bus}, {Address: &address}} {
		if _, _, _, _, ok := d.PCIAddress(); ok {
			t.Errorf("%+v has an address", d)
		}
	}
}

func TestStrings(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		Device{InstanceID: "a", LocationPath: "PCIROOT(0)"}.Name(): "PCIROOT(0)",
		Device{InstanceID: "a"}.Name():                             "a",
		LUID(0x1_0000C2F5).String():                                "0x00000001_0x0000C2F5",
		Health{}.String():                                          "healthy",
		Health{Reason: "broken"}.String():                          "broken",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	devices := []Device{{InstanceID: `PCI\VEN_10DE\1`}, {InstanceID: `PCI\VEN_10DE\2`}}
	if d, ok := Find(devices, `pci\ven_10de\2`); !ok || d.InstanceID != `PCI\VEN_10DE\2` {
		t.Errorf("%v, %t", d, ok)
	}
	if d, ok := Find(devices, `PCI\VEN_10DE\3`); ok {
		t.Errorf("%v", d)
	}
}
