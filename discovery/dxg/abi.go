//go:build linux

package dxg

import (
	"unsafe"

	"github.com/directx-nri/directx-nri/discovery"
)

// The requests of /dev/dxg: _IOWR(0x47, number, struct).
// https://github.com/microsoft/WSL2-Linux-Kernel/blob/linux-msft-wsl-6.6.y/include/uapi/misc/d3dkmthk.h
const (
	ioctlQueryAdapterInfo = 3<<30 | 0x47<<8 | 0x09 | unsafe.Sizeof(queryAdapterInfo{})<<16
	ioctlEnumAdapters3    = 3<<30 | 0x47<<8 | 0x3E | unsafe.Sizeof(enumAdapters3{})<<16
)

// Limits of D3DKMT and of the driver.
const (
	// maxAdapters is more than any VM has: the driver does not compare the room for adapters with their number.
	maxAdapters = 1024
	maxPath     = 260 // MAX_PATH
)

// winLUID is struct winluid: LUID.LowPart and LUID.HighPart.
type winLUID struct{ low, high uint32 }

func (l winLUID) value() discovery.LUID {
	return discovery.LUID(l.high)<<32 | discovery.LUID(l.low)
}

// adapterInfo is struct d3dkmt_adapterinfo.
type adapterInfo struct {
	handle               uint32
	luid                 winLUID
	sources              uint32
	moveRegionsPreferred uint32
}

// enumAdapters3 is struct d3dkmt_enumadapters3.
type enumAdapters3 struct {
	filter   uint64
	count, _ uint32
	adapters unsafe.Pointer
}

// includeComputeOnly is a bit of enumAdapters3.filter.
const includeComputeOnly = 1

// queryAdapterInfo is struct d3dkmt_queryadapterinfo.
type queryAdapterInfo struct {
	handle, kind uint32
	data         unsafe.Pointer
	size         uint32
}

// Kinds of queryAdapterInfo: KMTQUERYADAPTERINFOTYPE. Their data are Microsoft's structs
// with 16-bit characters.
// https://learn.microsoft.com/windows-hardware/drivers/ddi/d3dkmthk/ne-d3dkmthk-_kmtqueryadapterinfotype
const (
	querySegmentSize     = 3
	queryAddress         = 6
	queryRegistryInfo    = 8
	queryType            = 15
	queryUserModeVersion = 18
	queryDeviceIDs       = 31
	queryRegistry        = 48
)

// segmentSize is D3DKMT_SEGMENTSIZEINFO, in bytes.
type segmentSize struct{ dedicatedVideo, _, _ uint64 }

// adapterAddress is D3DKMT_ADAPTERADDRESS: the address on the host's PCI bus.
type adapterAddress struct{ bus, device, function uint32 }

// registryInfo is D3DKMT_ADAPTERREGISTRYINFO.
type registryInfo struct{ adapter, _, _, _ [maxPath]uint16 }

// Bits of struct d3dkmt_adaptertype. The driver clears display_supported.
const (
	typeRender           = 1 << 0
	typeSoftware         = 1 << 2
	typeHybridIntegrated = 1 << 5
	typeParavirtualized  = 1 << 7
	typeDetachable       = 1 << 10
	typeComputeOnly      = 1 << 11
)

// deviceIDs is D3DKMT_QUERY_DEVICE_IDS.
type deviceIDs struct {
	_                                                 uint32 // the physical adapter
	vendor, device, subVendor, subSystem, revision, _ uint32 // the last is the bus type
}

// registryQuery is D3DDDI_QUERYREGISTRY_INFO up to its output, which follows it.
type registryQuery struct {
	kind, flags                uint32
	name                       [maxPath]uint16
	valueType, physicalAdapter uint32
	outputSize, status         uint32
}

// storePathQuery is registryQuery with room for a driver store path, which has about 70 characters.
// Windows requires 8 bytes more than the path.
type storePathQuery struct {
	registryQuery
	output [2048]uint16
}

const (
	registryDriverStorePath = 2 // D3DDDI_QUERYREGISTRY_DRIVERSTOREPATH
	registrySuccess         = 0 // D3DDDI_QUERYREGISTRY_STATUS_SUCCESS
)
