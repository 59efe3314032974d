//go:build linux

package main

import (
	"syscall"
	"unicode/utf16"
)

// scenario is the content of the scenario file.
type scenario struct{ Adapters []adapter }

// adapter is an adapter of the host.
type adapter struct {
	LUID        uint64
	Description string
	// Type has the bits of D3DKMT_ADAPTERTYPE as the host answers them.
	Type, Bus              uint32
	Vendor, Device, Memory uint64
	DriverStore            string
	// DriverVersion is four numbers of 16 bits.
	DriverVersion [4]uint16
	// Errnos are errors of types of queries.
	Errnos map[uint32]syscall.Errno
}

// Bits of D3DKMT_ADAPTERTYPE.
const (
	displaySupported = 1 << 1
	computeOnly      = 1 << 11

	// The driver sets and clears these in what the host answers.
	paravirtualized = 1 << 7
	notInGuests     = displaySupported | 1<<3 | 1<<6 | 1<<8 | 1<<9
)

// query writes the answer of a type of query into buffer, which has what the caller asked.
func (a *adapter) query(kind uint32, buffer []byte) syscall.Errno {
	if errno := a.Errnos[kind]; errno != 0 {
		return errno
	}
	var value any
	switch kind {
	case queryAdapterType:
		value = a.Type&^notInGuests | paravirtualized
	case queryRegistryInfo:
		info := adapterRegistryInfo{}
		copy(info.Adapter[:maxPath-1], utf16.Encode([]rune(a.Description)))
		copy(info.Chip[:maxPath-1], info.Adapter[:])
		value = info
	case queryDeviceIDs:
		value = deviceIDs{Vendor: uint32(a.Vendor), Device: uint32(a.Device), BusType: 1}
	case queryAddress:
		value = adapterAddress{Bus: a.Bus}
	case querySegmentSize:
		value = segmentSize{DedicatedVideo: a.Memory, SharedSystem: 8 << 30}
	case queryUserDriverVersion:
		v := a.DriverVersion
		value = uint64(v[0])<<48 | uint64(v[1])<<32 | uint64(v[2])<<16 | uint64(v[3])
	case queryRegistry:
		return a.queryRegistry(buffer)
	default:
		return syscall.EINVAL
	}
	data := encode(value)
	if len(buffer) < len(data) {
		return syscall.EINVAL
	}
	copy(buffer, data)
	return 0
}

func (a *adapter) queryRegistry(buffer []byte) syscall.Errno {
	var query registryQuery
	if !decode(buffer, &query) || query.Type != registryDriverStorePath || query.PhysicalAdapter != 0 || a.DriverStore == "" {
		return syscall.EINVAL
	}
	path := encode(append(utf16.Encode([]rune(a.DriverStore)), 0))
	query.Size, query.Status = uint32(len(path)), 0
	// As Windows' documentation asks: the size of the structure and the value's.
	if len(buffer) < len(encode(query))+len(path) {
		query.Status = registryOverflow
		path = nil
	}
	copy(buffer, encode(query))
	copy(buffer[registryValueOffset:], path)
	return 0
}
