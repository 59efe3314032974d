//go:build linux

package main

import (
	"math/rand/v2"
	"slices"
	"syscall"
	"unicode/utf16"
)

// scenario is the content of the scenario file.
type scenario struct {
	// EnumErrno is the error that enumeration fails with.
	EnumErrno syscall.Errno
	// Count is how many adapters enumeration reports in place of their number.
	Count *uint32
	// Noise replaces answers by random bytes, counts and errors.
	Noise    bool
	Adapters []adapter
}

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
	// Gone makes it vanish after enumeration.
	Gone bool
	// Errno is the error of every query that has no answer of its own in Answers.
	Errno syscall.Errno
	// Answers replace those to types of queries.
	Answers map[uint32]answer
}

// answer replaces the answer to one type of query.
type answer struct {
	Errno syscall.Errno
	// Bytes are the answer.
	Bytes []byte
	// Short, if not 0, is how many bytes are answered.
	Short int
}

// Bits of D3DKMT_ADAPTERTYPE.
const (
	displaySupported = 1 << 1
	computeOnly      = 1 << 11

	// The driver sets and clears these in what the host answers.
	paravirtualized = 1 << 7
	notInGuests     = displaySupported | 1<<3 | 1<<6 | 1<<8 | 1<<9
)

// find returns the adapter with the LUID that can be used, nil if there is none.
func (s *scenario) find(luid uint64) *adapter {
	i := slices.IndexFunc(s.Adapters, func(a adapter) bool { return a.LUID == luid && !a.Gone })
	if i < 0 {
		return nil
	}
	return &s.Adapters[i]
}

// count is how many adapters enumeration reports when there are n.
func (s *scenario) count(n int) uint32 {
	if s.Count != nil {
		return *s.Count
	}
	if s.Noise {
		return []uint32{0, 1, uint32(n), 64, 65, 0xFFFF, 0x1_0000, 1 << 31, 1<<32 - 1}[rand.IntN(9)]
	}
	return uint32(n)
}

// query writes the answer of a type of query into buffer, which has what the caller
// asked.
func (s *scenario) query(a *adapter, kind uint32, buffer []byte) syscall.Errno {
	if s.Noise && rand.IntN(4) > 0 {
		for i := range buffer {
			buffer[i] = byte(rand.Uint32())
		}
		return []syscall.Errno{0, 0, 0, syscall.EIO, syscall.EINVAL, syscall.ENODEV}[rand.IntN(6)]
	}
	replaced, found := a.Answers[kind]
	switch {
	case found && replaced.Errno != 0:
		return replaced.Errno
	case found && replaced.Bytes != nil:
		copy(buffer, replaced.Bytes)
		return 0
	case !found && a.Errno != 0:
		return a.Errno
	}
	full := slices.Clone(buffer)
	if errno := a.query(kind, full); errno != 0 {
		return errno
	}
	if 0 < replaced.Short && replaced.Short < len(full) {
		full = full[:replaced.Short]
	}
	copy(buffer, full)
	return 0
}

// query is the answer of a host without faults.
func (a *adapter) query(kind uint32, buffer []byte) syscall.Errno {
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
