//go:build linux

package dxg

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestFunctions(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, f := range []struct {
		address, vendor, device string
		config                  []byte
	}{
		{"3db8:00:00.0", "0x1414", "0x008e", config(1)},
		{"10000:00:1f.7", "0x1414", "0x008a", config(2)},     // NPU; more domains than 16 bits
		{"0001:00:00.0", "0x1414", "0x008e", config(3)[:64]}, // not for root
		{"0002:00:00.0", "0x10de", "0x008e", config(4)},      // another vendor
		{"0003:00:00.0", "0x1414", "0x5353", config(5)},      // another device of Microsoft
		{"0004:02:00.0", "0x1414", "0x008e", config(6)},      // behind a bridge
		{"invalid", "0x1414", "0x008e", config(7)},
	} {
		plug(t, root, f.address, f.vendor, f.device, f.config)
	}
	testutil.WriteFile(t, root+"/sys/bus/pci/devices/0005:00:00.0", "", 0o644) // It has no attributes.
	want := map[discovery.LUID]pciFunction{
		1: {"PCIROOT(3DB8)#PCI(0000)", false}, 2: {"PCIROOT(10000)#PCI(1F07)", true}, 6: {"", false}, 7: {"", false},
	}
	if diff := cmp.Diff(want, readPCIFunctions(root+"/sys"), cmp.AllowUnexported(pciFunction{})); diff != "" {
		t.Error(diff)
	}
	if got := readPCIFunctions(root + "/none"); len(got) != 0 {
		t.Errorf("without sysfs: %v", got)
	}
}
