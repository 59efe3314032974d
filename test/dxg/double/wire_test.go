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
		enum2    enumAdapters2
		enum3    enumAdapters3
		open     openAdapterFromLUID
		query    queryAdapterInfo
		strings  adapterRegistryInfo
		group    segmentGroupSize
		ids      deviceIDs
		registry registryQuery
	)
	for name, sizes := range map[string]struct{ got, want uintptr }{
		"adapterInfo":                  {unsafe.Sizeof(info), 20},
		"adapterInfo.LUID":             {unsafe.Offsetof(info.LUID), 4},
		"adapterInfo.Sources":          {unsafe.Offsetof(info.Sources), 12},
		"enumAdapters2":                {unsafe.Sizeof(enum2), 16},
		"enumAdapters2.Adapters":       {unsafe.Offsetof(enum2.Adapters), 8},
		"enumAdapters3":                {unsafe.Sizeof(enum3), 24},
		"enumAdapters3.Count":          {unsafe.Offsetof(enum3.Count), 8},
		"enumAdapters3.Adapters":       {unsafe.Offsetof(enum3.Adapters), 16},
		"openAdapterFromLUID":          {unsafe.Sizeof(open), 12},
		"openAdapterFromLUID.Handle":   {unsafe.Offsetof(open.Handle), 8},
		"closeAdapter":                 {unsafe.Sizeof(closeAdapter{}), 4},
		"queryAdapterInfo":             {unsafe.Sizeof(query), 24},
		"queryAdapterInfo.Type":        {unsafe.Offsetof(query.Type), 4},
		"queryAdapterInfo.Data":        {unsafe.Offsetof(query.Data), 8},
		"queryAdapterInfo.Size":        {unsafe.Offsetof(query.Size), 16},
		"adapterRegistryInfo":          {unsafe.Sizeof(strings), 2080},
		"adapterRegistryInfo.Chip":     {unsafe.Offsetof(strings.Chip), 1560},
		"segmentSize":                  {unsafe.Sizeof(segmentSize{}), 24},
		"segmentGroupSize":             {unsafe.Sizeof(group), 56},
		"segmentGroupSize.Legacy":      {unsafe.Offsetof(group.Legacy), 8},
		"segmentGroupSize.Local":       {unsafe.Offsetof(group.Local), 32},
		"deviceIDs":                    {unsafe.Sizeof(ids), 28},
		"deviceIDs.Vendor":             {unsafe.Offsetof(ids.Vendor), 4},
		"deviceIDs.BusType":            {unsafe.Offsetof(ids.BusType), 24},
		"registryQuery":                {unsafe.Sizeof(registry), 552},
		"registryQuery.Name":           {unsafe.Offsetof(registry.Name), 8},
		"registryQuery.ValueType":      {unsafe.Offsetof(registry.ValueType), 528},
		"registryQuery.Size":           {unsafe.Offsetof(registry.Size), 536},
		"registryQuery.Status":         {unsafe.Offsetof(registry.Status), 540},
		"registryQuery.Value":          {unsafe.Offsetof(registry.Value), registryValueOffset},
		"encoding of queryAdapterInfo": {uintptr(len(encode(query))), 24},
		"encoding of segmentGroupSize": {uintptr(len(encode(group))), 56},
		"encoding of registryQuery":    {uintptr(len(encode(registry))), 552},
		"ioctl openAdapterFromLUID":    {iowr(1, unsafe.Sizeof(open)), openAdapterFromLUIDCommand},
		"ioctl queryAdapterInfo":       {iowr(9, unsafe.Sizeof(query)), queryAdapterInfoCommand},
		"ioctl enumAdapters2":          {iowr(0x14, unsafe.Sizeof(enum2)), enumAdapters2Command},
		"ioctl closeAdapter":           {iowr(0x15, unsafe.Sizeof(closeAdapter{})), closeAdapterCommand},
		"ioctl enumAdapters3":          {iowr(0x3E, unsafe.Sizeof(enum3)), enumAdapters3Command},
	} {
		if sizes.got != sizes.want {
			t.Errorf("%s: %#x, want %#x", name, sizes.got, sizes.want)
		}
	}
}

// iowr is the number of an ioctl that reads and writes.
func iowr(number, size uintptr) uintptr { return 3<<30 | size<<16 | 'G'<<8 | number }
