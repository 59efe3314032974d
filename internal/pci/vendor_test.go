package pci

import "testing"

func TestVendor(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]Vendor{
		`PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\3&13C0B0C5&1&D8`: VendorNVIDIA,
		`pci\ven_1002&dev_73bf`:                  VendorAMD,
		`PCI\VEN_8086`:                           VendorIntel,
		`PCI\VEN_80861&DEV_1`:                    0,
		`PCI\VEN_808`:                            0,
		`PCI\VEN_QCOM&DEV_1`:                     0,
		`PCI\VEN_+123&DEV_1`:                     0,
		`USB\VEN_8086&DEV_1`:                     0,
		`SWD\PCI\VEN_8086&DEV_1`:                 0,
		``:                                       0,
		`HDAUDIO\FUNC_01&VEN_10DE&DEV_0083`:      0,
		`PCI\VEN_5143&DEV_0A01&SUBSYS_0&REV_0\0`: VendorQualcomm,
	} {
		if got := VendorOf(id); got != want {
			t.Errorf("%s: %s, want %s", id, got, want)
		}
	}
	if names := VendorNVIDIA.Name() + " " + Vendor(0).Name() + " " + Vendor(0xabcd).Name(); names != "NVIDIA unknown 0xABCD" {
		t.Errorf("the names are %s", names)
	}
}
