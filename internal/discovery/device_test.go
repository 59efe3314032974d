package discovery

import (
	"testing"

	"github.com/directx-nri/directx-nri/internal/policy"
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

func TestPCIVendor(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]policy.Vendor{
		`PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\3&13C0B0C5&1&D8`: policy.VendorNVIDIA,
		`pci\ven_1002&dev_73bf`:                  policy.VendorAMD,
		`PCI\VEN_8086`:                           policy.VendorIntel,
		`PCI\VEN_8086\1`:                         policy.VendorIntel,
		`PCI\VEN_80861&DEV_1`:                    0,
		`PCI\VEN_808`:                            0,
		`PCI\VEN_QCOM&DEV_1`:                     0,
		`PCI\VEN_+123&DEV_1`:                     0,
		`USB\VEN_8086&DEV_1`:                     0,
		`SWD\PCI\VEN_8086&DEV_1`:                 0,
		``:                                       0,
		`ROOT\BASICRENDER\0000`:                  0,
		`HDAUDIO\FUNC_01&VEN_10DE&DEV_0083`:      0,
		`PCI\VEN_5143&DEV_0A01&SUBSYS_0&REV_0\0`: policy.VendorQualcomm,
	} {
		if got := PCIVendor(id); got != want {
			t.Errorf("%s: %s, want %s", id, got, want)
		}
	}
}

func TestStrings(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		Device{InstanceID: "a", LocationPath: "PCIROOT(0)"}.Name(): "PCIROOT(0)",
		Device{InstanceID: "a"}.Name():                             "a",
		LUID(0x1_0000C2F5).String():                                "0x00000001_0x0000C2F5",
		policy.VendorNVIDIA.Name():                                 "NVIDIA",
		policy.Vendor(0).Name():                                    "unknown",
		policy.Vendor(0xabcd).Name():                               "0xABCD",
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
