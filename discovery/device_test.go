package discovery

import "testing"

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
