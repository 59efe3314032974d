//go:build linux

package dxg

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/directx-nri/directx-nri/discovery"
)

// The virtual GPUs that the driver binds to, and where their PCI configuration space has the ID of
// the VMBus channel. That ID begins with the LUID by which /dev/dxg identifies the adapter.
// https://github.com/microsoft/WSL2-Linux-Kernel/blob/linux-msft-wsl-6.6.y/drivers/hv/dxgkrnl/dxgmodule.c
const (
	microsoftVendor    = "0x1414"
	virtualRender      = "0x008e"
	computeAccelerator = "0x008a"
	channelIDOffset    = 192
)

// pciFunction is the PCI function of a virtual GPU.
type pciFunction struct {
	locationPath string
	computeOnly  bool
}

// readPCIFunctions returns the PCI functions of the virtual GPUs whose configuration space can be read.
// Only root can read it beyond the first 64 bytes.
func readPCIFunctions(sys string) map[discovery.LUID]pciFunction {
	found := map[discovery.LUID]pciFunction{}
	directories, _ := filepath.Glob(filepath.Join(sys, "bus/pci/devices/*"))
	for _, directory := range directories {
		if readAttribute(directory, "vendor") != microsoftVendor {
			continue
		}
		id := readAttribute(directory, "device")
		config, err := os.ReadFile(filepath.Join(directory, "config"))
		if id != virtualRender && id != computeAccelerator || err != nil || len(config) < channelIDOffset+16 {
			continue
		}
		luid := discovery.LUID(binary.LittleEndian.Uint64(config[channelIDOffset:]))
		found[luid] = pciFunction{locationPath(filepath.Base(directory)), id == computeAccelerator}
	}
	return found
}

func readAttribute(directory, name string) string {
	data, _ := os.ReadFile(filepath.Join(directory, name))
	return strings.TrimSpace(string(data))
}

// locationPath returns the location path of a PCI address such as 3db8:00:00.0, "" if there is none.
// Each virtual GPU is the only device of a PCI domain, whose number is that of the root.
func locationPath(address string) string {
	var domain, bus, device, number uint32
	if n, err := fmt.Sscanf(address, "%x:%x:%x.%x", &domain, &bus, &device, &number); n != 4 || err != nil || bus != 0 {
		return ""
	}
	return fmt.Sprintf("PCIROOT(%X)#PCI(%02X%02X)", domain, device, number)
}
