//go:build linux

package main

import "encoding/binary"

// The ioctls that the double answers: _IOWR('G', number, structure).
// https://github.com/microsoft/WSL2-Linux-Kernel/blob/linux-msft-wsl-6.6.y/include/uapi/misc/d3dkmthk.h
const (
	queryAdapterInfoCommand = 0xC018_4709
	enumAdapters3Command    = 0xC018_473E
)

// The ioctls' structures. They have every padding as a field, so that their encoding
// has their layout. The product's, which a test compares with Microsoft's headers, do not work with another one.

type adapterInfo struct {
	Handle                                  uint32
	LUIDLow, LUIDHigh                       uint32
	Sources, PresentMoveRegionsArePreferred uint32
}

type enumAdapters3 struct {
	Filter          uint64 // The lowest bit asks for compute-only adapters.
	Count, Reserved uint32
	Adapters        uint64
}

type queryAdapterInfo struct {
	Handle, Type  uint32
	Data          uint64
	Size, Padding uint32
}

// Types of queries.
// https://learn.microsoft.com/windows-hardware/drivers/ddi/d3dkmthk/ne-d3dkmthk-_kmtqueryadapterinfotype
const (
	querySegmentSize       = 3
	queryAddress           = 6
	queryRegistryInfo      = 8
	queryAdapterType       = 15
	queryUserDriverVersion = 18
	queryDeviceIDs         = 31
	queryRegistry          = 48
)

// The queries' structures.
// https://learn.microsoft.com/windows-hardware/drivers/ddi/d3dkmthk/

// maxPath is MAX_PATH: the length of strings in UTF-16 units.
const maxPath = 260

type adapterRegistryInfo struct{ Adapter, BIOS, DAC, Chip [maxPath]uint16 }

type adapterAddress struct{ Bus, Device, Function uint32 }

type segmentSize struct{ DedicatedVideo, DedicatedSystem, SharedSystem uint64 }

type deviceIDs struct {
	PhysicalAdapter                                         uint32
	Vendor, Device, SubVendor, Subsystem, Revision, BusType uint32
}

// registryQuery is followed by the value in place of Value, as many bytes as the caller
// has room for.
type registryQuery struct {
	Type, Flags     uint32
	Name            [maxPath]uint16
	ValueType       uint32
	PhysicalAdapter uint32
	Size, Status    uint32
	Value           [8]byte
}

const (
	registryDriverStorePath = 2 // in registryQuery.Type
	registryOverflow        = 1 // in registryQuery.Status: Size says how many bytes there are
	registryValueOffset     = 544
)

// encode returns the encoding of a structure.
func encode(value any) []byte {
	data, err := binary.Append(nil, binary.LittleEndian, value)
	if err != nil {
		panic(err) // It has a field without a fixed size.
	}
	return data
}

// decode reads a structure from data and reports whether data is long enough.
func decode(data []byte, value any) bool {
	_, err := binary.Decode(data, binary.LittleEndian, value)
	return err == nil
}
