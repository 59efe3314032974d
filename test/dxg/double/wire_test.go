//go:build linux

package main

import (
	"testing"
	"unsafe"
)

// TestLayout compares the structures with numbers that gcc 12 printed (sizeof, offsetof
// and _IOWR on amd64) for Microsoft's own declarations: the ioctls' for user mode of
// include/uapi/misc/d3dkmthk.h in microsoft/WSL2-Linux-Kernel at 0a2a0a085aee, the
// queries' of include/d3dkmthk.h and include/d3dukmdt.h in microsoft/libdxg at
// 045831efab4b with a WCHAR of 16 bits.
func TestLayout(t *testing.T) {
	var (
		info     adapterInfo
		enum3    enumAdapters3
		query    queryAdapterInfo
		strings  adapterRegistryInfo
		ids      deviceIDs
		registry registryQuery
	)
	iowr := func(number, size uintptr) uintptr { return 3<<30 | size<<16 | 'G'<<8 | number }
	for name, numbers := range map[string][2][]uintptr{
		"ioctls": {
			{iowr(9, unsafe.Sizeof(query)), iowr(0x15, unsafe.Sizeof(closeAdapter{})), iowr(0x3E, unsafe.Sizeof(enum3))},
			{queryAdapterInfoCommand, closeAdapterCommand, enumAdapters3Command},
		},
		"adapterInfo":         {{unsafe.Sizeof(info), unsafe.Offsetof(info.LUIDLow), unsafe.Offsetof(info.Sources)}, {20, 4, 12}},
		"enumAdapters3":       {{unsafe.Sizeof(enum3), unsafe.Offsetof(enum3.Count), unsafe.Offsetof(enum3.Adapters)}, {24, 8, 16}},
		"queryAdapterInfo":    {{unsafe.Sizeof(query), unsafe.Offsetof(query.Type), unsafe.Offsetof(query.Data), unsafe.Offsetof(query.Size)}, {24, 4, 8, 16}},
		"adapterRegistryInfo": {{unsafe.Sizeof(strings), unsafe.Offsetof(strings.Chip)}, {2080, 1560}},
		"adapterAddress":      {{unsafe.Sizeof(adapterAddress{})}, {12}},
		"segmentSize":         {{unsafe.Sizeof(segmentSize{})}, {24}},
		"deviceIDs":           {{unsafe.Sizeof(ids), unsafe.Offsetof(ids.Vendor), unsafe.Offsetof(ids.BusType)}, {28, 4, 24}},
		"registryQuery": {
			{
				unsafe.Sizeof(registry), unsafe.Offsetof(registry.Name), unsafe.Offsetof(registry.ValueType),
				unsafe.Offsetof(registry.Size), unsafe.Offsetof(registry.Status), unsafe.Offsetof(registry.Value),
			},
			{552, 8, 528, 536, 540, registryValueOffset},
		},
		"encodings": {{uintptr(len(encode(query))), uintptr(len(encode(registry)))}, {24, 552}},
	} {
		for i, want := range numbers[1] {
			if got := numbers[0][i]; got != want {
				t.Errorf("%s, number %d: %#x, want %#x", name, i, got, want)
			}
		}
	}
}
