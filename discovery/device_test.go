package discovery

import "testing"

func TestKind(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		display, compute bool
		want             Kind
	}{
		{true, true, KindDisplay}, {true, false, KindDisplay}, {false, true, KindCompute}, {false, false, KindNone},
	} {
		if got := (Device{SupportsDisplay: test.display, SupportsCompute: test.compute}).Kind(); got != test.want {
			t.Errorf("display %t, compute %t: %q, want %q", test.display, test.compute, got, test.want)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		Device{InstanceID: "a", LocationPath: "PCIROOT(0)"}.Name(): "PCIROOT(0)",
		Device{InstanceID: "a"}.Name():                             "a",
		LUID(0x1_0000C2F5).String():                                "0x00000001_0x0000C2F5",
		VendorNVIDIA.String():                                      "NVIDIA",
		VendorID(0).String():                                       "unknown",
		VendorID(0xabcd).String():                                  "0xABCD",
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
		t.Errorf("found %v, %t", d, ok)
	}
	if d, ok := Find(devices, `PCI\VEN_10DE\3`); ok {
		t.Errorf("found %v", d)
	}
}

func TestCloneSharesNothing(t *testing.T) {
	t.Parallel()
	node := 1
	d := Device{
		NUMANode: &node, System32: []RuntimeFile{{"a", "a"}}, SysWOW64: []RuntimeFile{{"a", "a"}},
		DeviceNodes: []DeviceNode{{"a", "a"}}, Libraries: []Library{{"a", "a"}},
	}
	c := d.Clone()
	*c.NUMANode = 2
	c.System32[0].Source, c.SysWOW64[0].Source, c.DeviceNodes[0].Path, c.Libraries[0].Source = "b", "b", "b", "b"
	if node != 1 || d.System32[0].Source != "a" || d.SysWOW64[0].Source != "a" || d.DeviceNodes[0].Path != "a" || d.Libraries[0].Source != "a" {
		t.Errorf("a change of the clone changed %+v", d)
	}
}
