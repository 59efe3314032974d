// Package discovery says which GPUs a node has and which files their drivers
// want inside a container.
//
// A [Source] lists [Device] values and tells of changes. Where the values come
// from (an inventory file, the operating system) is the source's business;
// nothing above this package asks.
package discovery

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"directx-nri/internal/pcivendor"
)

// Device is one GPU of the node.
//
// A Device is a value: sources hand out copies that the receiver may keep, and
// nobody changes one in place.
type Device struct {
	// InstanceID is the PnP device instance ID, for example
	// `PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\4&1CFCA9AB&0&00D8`. It is
	// the device's identity here: unique on the node, and the same after a
	// reboot. On Linux nodes it is whatever names the device on its bus.
	// https://learn.microsoft.com/windows-hardware/drivers/install/device-instance-ids
	InstanceID string

	// Description is the text a person knows the device by ("NVIDIA Tesla T4").
	Description string

	// VendorID is the PCI vendor ID, 0 when it is not known.
	VendorID VendorID

	// Manufacturer is what the driver calls the manufacturer. It is text for a
	// person: whose device it is, the VendorID tells.
	Manufacturer string

	// LocationPath is the PCIe location path, for example
	// `PCIROOT(0)#PCI(1B00)`: the first value of DEVPKEY_Device_LocationPaths.
	// Empty when the device has none; a Windows container cannot be given
	// such a device by itself, and can as one of all GPUs, by their class.
	LocationPath string

	// UUID is what NVIDIA's driver knows the GPU by,
	// GPU-8932f937-d72c-4106-c12f-20bd9faed9f6: the same on every node and after
	// every boot. "" for other vendors' devices, and where it was not asked for.
	// https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
	UUID string

	// LUID is the adapter's locally unique ID. It changes with every boot and
	// every driver restart, so it identifies a device to a person or a
	// program now, never in a record. 0 when there is none.
	LUID LUID

	// DriverKey is the driver's registry key below
	// HKLM\SYSTEM\CurrentControlSet\Control\Class.
	DriverKey string

	// DriverVersion is the version of the installed driver package, in
	// Windows' four-part form.
	DriverVersion string

	// DriverStorePath is the folder of the driver package,
	// `C:\Windows\System32\DriverStore\FileRepository\…`. The sources of
	// System32 and SysWOW64 are relative to it.
	DriverStorePath string

	// DedicatedMemory is the device's own memory in bytes.
	DedicatedMemory uint64

	// NUMANode is the NUMA node the device is closest to, nil when the
	// platform does not say.
	NUMANode *int

	// BusNumber and Address are the device's place: for PCI the bus, and the
	// device number in the upper and the function in the lower 16 bits. nil when
	// Windows does not say.
	BusNumber, Address *uint32

	// Status and Problem are Plug and Play's DN_ bits and CM_PROB_ code.
	// https://learn.microsoft.com/windows/win32/api/cfgmgr32/nf-cfgmgr32-cm_get_devnode_status
	Status, Problem uint32

	// Software tells a software renderer.
	Software bool

	// Integrated tells a GPU that shares the processor's memory.
	Integrated bool

	// Detachable tells a GPU that can be unplugged while the node runs.
	Detachable bool

	// SupportsDisplay tells the full WDDM driver model: display and compute.
	SupportsDisplay bool

	// SupportsCompute tells that compute work runs on the device. With
	// SupportsDisplay false it is a compute-only device (MCDM).
	SupportsCompute bool

	// Health says whether the device can be given to containers now.
	Health Health

	// Notes are what is not known of the device, or was passed over, each one line
	// for a person. Unlike Health they do not keep it from being used.
	Notes []string

	// System32 and SysWOW64 are the driver's runtime files for 64-bit and for
	// 32-bit programs, in the order in which the driver lists them.
	System32 []RuntimeFile
	SysWOW64 []RuntimeFile

	// DeviceNodes and Libraries are what a Linux container needs in place of
	// a location path and runtime files.
	DeviceNodes []DeviceNode
	Libraries   []Library
}

// RuntimeFile is one driver file to be mounted into a Windows container.
type RuntimeFile struct {
	// Source is the file's path relative to the driver store path.
	Source string
	// Destination is the file's name in System32 or SysWOW64. It differs from
	// the last element of Source where the driver says so
	// (nvcuda_loader64.dll is mounted as nvcuda.dll).
	Destination string
}

// DeviceNode is one device node of a Linux node.
type DeviceNode struct {
	// Path is the node on the host, for example /dev/dxg.
	Path string
	// ContainerPath is where it appears in the container.
	ContainerPath string
}

// Library is one file or folder of a Linux node's user-mode driver.
type Library struct {
	// Source is the path on the host.
	Source string
	// Destination is the path in the container.
	Destination string
}

// Health says whether a device can be used, and why not. The zero value means
// healthy.
type Health struct {
	// Reason is empty for a healthy device, and otherwise one line for a
	// person: what is wrong with the device.
	Reason string
	// ByPathOnly tells that Reason keeps the device from being given to a container
	// by its location path, and not from being one of all GPUs that are given by
	// their class: see [Device.ByClass].
	ByPathOnly bool
}

// OK tells whether the device can be used.
func (h Health) OK() bool { return h.Reason == "" }

func (h Health) String() string {
	if h.OK() {
		return "healthy"
	}
	return h.Reason
}

// VendorID is a PCI vendor ID.
// https://pcisig.com/membership/member-companies
type VendorID uint16

// PCI vendor IDs of the vendors with DirectX drivers.
const (
	VendorAMD       VendorID = pcivendor.AMD
	VendorNVIDIA    VendorID = pcivendor.NVIDIA
	VendorMicrosoft VendorID = pcivendor.Microsoft
	VendorQualcomm  VendorID = pcivendor.Qualcomm
	VendorIntel     VendorID = pcivendor.Intel
)

func (v VendorID) String() string {
	switch v {
	case 0:
		return "unknown"
	case VendorAMD:
		return "AMD"
	case VendorNVIDIA:
		return "NVIDIA"
	case VendorMicrosoft:
		return "Microsoft"
	case VendorQualcomm:
		return "Qualcomm"
	case VendorIntel:
		return "Intel"
	}
	return fmt.Sprintf("0x%04X", uint16(v))
}

// PCIVendor returns the vendor that a PnP ID of the PCI bus names, 0 when id
// names none: `PCI\VEN_10DE&…`, which instance IDs and hardware IDs begin with.
// https://learn.microsoft.com/windows-hardware/drivers/install/identifiers-for-pci-devices
func PCIVendor(id string) VendorID {
	const prefix, digits = `PCI\VEN_`, 4
	end := len(prefix) + digits
	if len(id) < end || !strings.EqualFold(id[:len(prefix)], prefix) || len(id) > end && id[end] != '&' && id[end] != '\\' {
		return 0
	}
	vendor, err := strconv.ParseUint(id[len(prefix):end], 16, 16)
	if err != nil {
		return 0
	}
	return VendorID(vendor)
}

// LUID is a locally unique identifier: HighPart in the upper 32 bits, LowPart
// in the lower ones.
// https://learn.microsoft.com/windows/win32/api/winnt/ns-winnt-luid
type LUID uint64

func (l LUID) String() string { return fmt.Sprintf("0x%08X_0x%08X", uint32(l>>32), uint32(l)) }

// ParseLUID reads a LUID in hexadecimal: as [LUID.String] writes it, or as one
// number (0xC2F5).
func ParseLUID(text string) (luid LUID, ok bool) {
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

// Kind is the resource class a device belongs to. Each device belongs to at
// most one, so that no device is promised twice.
type Kind string

// The kinds of device.
const (
	// KindDisplay devices have the full WDDM driver model.
	KindDisplay Kind = "display"
	// KindCompute devices are compute-only (MCDM).
	KindCompute Kind = "compute"
	// KindNone devices are software renderers, or support neither, and are never
	// offered.
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

// Name names the device for a person: its location path where it has one, for
// that is what a container is given, and otherwise its instance ID.
func (d Device) Name() string {
	if d.LocationPath != "" {
		return d.LocationPath
	}
	return d.InstanceID
}

// ByClass returns d as it is on a node whose containers are given GPUs by their
// interface class: what is wrong with a location path is nothing wrong there.
func (d Device) ByClass() Device {
	if d.Health.ByPathOnly {
		d.Health = Health{}
	}
	return d
}

// PCIPlace returns d's place on the PCI bus; ok is false when it is not known.
// The number of a bus has that of its segment in the upper 24 bits.
// https://learn.microsoft.com/windows-hardware/drivers/install/devpkey-device-address
func (d Device) PCIPlace() (segment, bus, device, function uint32, ok bool) {
	if d.BusNumber == nil || d.Address == nil {
		return 0, 0, 0, 0, false
	}
	return *d.BusNumber >> 8, *d.BusNumber & 0xFF, *d.Address >> 16, *d.Address & 0xFFFF, true
}

// Clone returns a deep copy of d.
func (d Device) Clone() Device {
	d.NUMANode = clonePointer(d.NUMANode)
	d.BusNumber, d.Address = clonePointer(d.BusNumber), clonePointer(d.Address)
	d.Notes = slices.Clone(d.Notes)
	d.System32 = slices.Clone(d.System32)
	d.SysWOW64 = slices.Clone(d.SysWOW64)
	d.DeviceNodes = slices.Clone(d.DeviceNodes)
	d.Libraries = slices.Clone(d.Libraries)
	return d
}

func clonePointer[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

// Find returns the device with the given instance ID. PnP compares instance
// IDs without regard to case.
func Find(devices []Device, instanceID string) (Device, bool) {
	i := slices.IndexFunc(devices, func(d Device) bool { return strings.EqualFold(d.InstanceID, instanceID) })
	if i < 0 {
		return Device{}, false
	}
	return devices[i], true
}
