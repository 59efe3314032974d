package discovery

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/directx-nri/directx-nri/internal/pci"
)

// Device is one GPU of the node. Copies share what its pointers and slices refer to, so that is not
// changed. A caller of [Source.Devices] can change the elements of its list. In JSON, it has the
// names of an inventory's keys where both have a value.
type Device struct {
	// InstanceID is the PnP device instance ID, for example
	// `PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\4&1CFCA9AB&0&00D8`. It
	// identifies the device: it is unique on the node and survives reboots. On Linux
	// it is the name of the device on its bus.
	// https://learn.microsoft.com/windows-hardware/drivers/install/device-instance-ids
	InstanceID string `json:"instanceID"`

	// Description is the product's name ("NVIDIA Tesla T4").
	Description string `json:"description"`

	// VendorID is the PCI vendor ID.
	VendorID pci.Vendor `json:"vendorID,omitzero"`

	// LocationPath is the PCIe location path, for example
	// `PCIROOT(0)#PCI(1B00)`: the first value of DEVPKEY_Device_LocationPaths.
	// A device without one can be assigned to Windows containers by class only.
	LocationPath string `json:"locationPath,omitempty"`

	// UUID is NVIDIA's identifier of the GPU, GPU-8932f937-d72c-4106-c12f-20bd9faed9f6. It is ""
	// for other vendors' devices and if it was not read.
	// https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
	UUID string `json:"uuid,omitempty"`

	// LUID is the adapter's locally unique ID, 0 if there is none. It changes with
	// every boot and every restart of the driver.
	LUID LUID `json:"luid,omitempty"`

	// DriverVersion is the driver's four-part version, and DriverStorePath the directory of its package,
	// `C:\Windows\System32\DriverStore\FileRepository\…`.
	DriverVersion   string `json:"driverVersion,omitempty"`
	DriverStorePath string `json:"driverStorePath,omitempty"`

	// DedicatedMemory is the device's own memory in bytes.
	DedicatedMemory uint64 `json:"dedicatedMemory"`

	// NUMANode is the closest NUMA node, nil if unknown.
	NUMANode *int `json:"numaNode,omitempty"`

	// BusNumber and Address are the device's address on its bus, nil if unknown. On PCI, Address
	// has the device number in the upper 16 bits and the function in the lower.
	BusNumber *uint32 `json:"busNumber,omitempty"`
	Address   *uint32 `json:"address,omitempty"`

	// Software marks a software renderer, Integrated a GPU that shares the processor's
	// memory, and Detachable one that can be unplugged while the node runs.
	Software   bool `json:"software"`
	Integrated bool `json:"integrated"`
	Detachable bool `json:"detachable"`

	// SupportsDisplay marks a device with Direct3D 11 or 12 graphics, SupportsCompute one with
	// Direct3D 12 core compute or machine learning. A device that only supports compute is
	// compute-only (MCDM).
	SupportsDisplay bool `json:"display"`
	SupportsCompute bool `json:"compute"`

	// MachineLearningOnly marks a device with Direct3D 12 machine learning and neither graphics nor core
	// compute, as some neural processors are.
	MachineLearningOnly bool `json:"machineLearningOnly,omitempty"`

	// Health is whether containers can use the device now.
	Health Health `json:"health,omitzero"`

	// Notes are remarks of one line each about properties that are unknown or were ignored.
	// They do not affect health.
	Notes []string `json:"notes,omitempty"`

	// System32 and SysWOW64 are the driver's runtime files for 64-bit and for 32-bit
	// programs, in the driver's order.
	System32 []RuntimeFile `json:"system32,omitempty"`
	SysWOW64 []RuntimeFile `json:"sysWOW64,omitempty"`

	// DeviceNodes and Libraries are what a Linux container needs. LibraryPath has the directories
	// of libraries that the container's dynamic linker does not search by default.
	DeviceNodes []DeviceNode `json:"deviceNodes,omitempty"`
	Libraries   []Library    `json:"libraries,omitempty"`
	LibraryPath []string     `json:"libraryPath,omitempty"`
}

// RuntimeFile is a driver file that is mounted into System32 or SysWOW64 of a Windows container.
type RuntimeFile struct {
	// Source is the path relative to the driver store path.
	Source string `json:"source"`
	// Destination is the file's name in System32 or SysWOW64, which can differ from
	// that of Source: nvcuda_loader64.dll is mounted as nvcuda.dll.
	Destination string `json:"destination"`
}

// DeviceNode is a device node of a Linux node: Path on the host, for example /dev/dxg,
// and ContainerPath in the container.
type DeviceNode struct {
	Path          string `json:"path"`
	ContainerPath string `json:"containerPath"`
}

// Library is a file or directory of a Linux node's user-mode driver: Source on the host
// and Destination in the container.
type Library struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

// Health is whether a device can be used, and why not. The zero value is healthy.
type Health struct {
	// Reason is a one-line cause, "" for a healthy device.
	Reason string `json:"reason,omitempty"`
}

// OK reports whether the device can be used.
func (h Health) OK() bool { return h.Reason == "" }

func (h Health) String() string {
	if h.OK() {
		return "healthy"
	}
	return h.Reason
}

// LUID is a locally unique identifier with HighPart in the upper 32 bits.
// https://learn.microsoft.com/windows/win32/api/winnt/ns-winnt-luid
type LUID uint64

func (l LUID) String() string { return fmt.Sprintf("0x%08X_0x%08X", uint32(l>>32), uint32(l)) }

// ParseLUID parses a LUID in the form of [LUID.String], or as one hexadecimal or decimal number (0xC2F5, 49909).
func ParseLUID(text string) (luid LUID, ok bool) {
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return LUID(n), true
	}
	parts := strings.Split(text, "_")
	if len(parts) > 2 {
		return 0, false
	}
	width := 64 / len(parts)
	for _, part := range parts {
		if len(part) < 3 || !strings.EqualFold(part[:2], "0x") {
			return 0, false
		}
		n, err := strconv.ParseUint(part[2:], 16, width)
		if err != nil {
			return 0, false
		}
		luid = luid<<width | LUID(n)
	}
	return luid, true
}

// Kind is the resource class of a device. A device has at most one, so that it is
// not offered twice.
type Kind string

// The kinds of device.
const (
	// KindDisplay devices have Direct3D 11 or 12 graphics.
	KindDisplay Kind = "display"
	// KindCompute devices are compute-only (MCDM).
	KindCompute Kind = "compute"
	// KindNone devices, such as software renderers, are never offered.
	KindNone Kind = ""
)

// Kind returns the resource class of d.
func (d Device) Kind() Kind {
	switch {
	case d.Software:
		return KindNone
	case d.SupportsDisplay:
		return KindDisplay
	case d.SupportsCompute:
		return KindCompute
	}
	return KindNone
}

// Name returns the name of d for messages: its location path, otherwise its instance ID.
func (d Device) Name() string { return cmp.Or(d.LocationPath, d.InstanceID) }

// PCIAddress returns the PCI address of d; ok is false if it is unknown. A bus number
// has 8 bits for the bus, 16 for the segment, and 8 that are reserved.
// https://learn.microsoft.com/windows-hardware/drivers/install/devpkey-device-address
// https://learn.microsoft.com/windows-hardware/drivers/ddi/miniport/ns-miniport-_pci_segment_bus_number
func (d Device) PCIAddress() (segment, bus, device, function uint32, ok bool) {
	if d.BusNumber == nil || d.Address == nil {
		return 0, 0, 0, 0, false
	}
	return *d.BusNumber >> 8 & 0xFFFF, *d.BusNumber & 0xFF, *d.Address >> 16, *d.Address & 0xFFFF, true
}

// NormalizeID returns the same string for all spellings of an instance ID, which is case-insensitive.
// Compare IDs only by this string: other ways, such as [strings.EqualFold], differ beyond ASCII.
func NormalizeID(instanceID string) string { return strings.ToUpper(instanceID) }

// Find returns the device with the given instance ID.
func Find(devices []Device, instanceID string) (Device, bool) {
	instanceID = NormalizeID(instanceID)
	i := slices.IndexFunc(devices, func(d Device) bool { return NormalizeID(d.InstanceID) == instanceID })
	if i < 0 {
		return Device{}, false
	}
	return devices[i], true
}

// IndexOf returns the index of the device that a user names by its index, LUID, location path or instance
// ID, -1 if there is none. A number that is an index is no LUID.
func IndexOf(devices []Device, name string) int {
	if index, err := strconv.ParseUint(name, 10, 32); err == nil && index < uint64(len(devices)) {
		return int(index)
	}
	luid, isLUID := ParseLUID(name)
	return slices.IndexFunc(devices, func(d Device) bool {
		return isLUID && luid != 0 && d.LUID == luid ||
			name != "" && strings.EqualFold(d.LocationPath, name) ||
			NormalizeID(d.InstanceID) == NormalizeID(name)
	})
}
