//go:build linux && (amd64 || arm64)

package dxg

import (
	"testing"
	"unsafe"
)

// TestLayout compares the structs with numbers that a C compiler printed for
// d3dkmthk.h of microsoft/WSL2-Linux-Kernel (the requests) and of microsoft/libdxg
// (the queries, with 16-bit characters).
func TestLayout(t *testing.T) {
	t.Parallel()
	for name, numbers := range map[string][2]uintptr{
		"LX_DXQUERYADAPTERINFO": {ioctlQueryAdapterInfo, 0xC0184709},
		"LX_DXENUMADAPTERS3":    {ioctlEnumAdapters3, 0xC018473E},

		"d3dkmt_adapterinfo":                        {unsafe.Sizeof(adapterInfo{}), 20},
		"d3dkmt_adapterinfo.adapter_luid":           {unsafe.Offsetof(adapterInfo{}.luid), 4},
		"winluid.b":                                 {unsafe.Offsetof(winLUID{}.high), 4},
		"d3dkmt_adapterinfo.num_sources":            {unsafe.Offsetof(adapterInfo{}.sources), 12},
		"d3dkmt_enumadapters3":                      {unsafe.Sizeof(enumAdapters3{}), 24},
		"d3dkmt_enumadapters3.adapter_count":        {unsafe.Offsetof(enumAdapters3{}.count), 8},
		"d3dkmt_enumadapters3.adapters":             {unsafe.Offsetof(enumAdapters3{}.adapters), 16},
		"d3dkmt_queryadapterinfo":                   {unsafe.Sizeof(queryAdapterInfo{}), 24},
		"d3dkmt_queryadapterinfo.type":              {unsafe.Offsetof(queryAdapterInfo{}.kind), 4},
		"d3dkmt_queryadapterinfo.private_data":      {unsafe.Offsetof(queryAdapterInfo{}.data), 8},
		"d3dkmt_queryadapterinfo.private_data_size": {unsafe.Offsetof(queryAdapterInfo{}.size), 16},

		"D3DKMT_SEGMENTSIZEINFO":                        {unsafe.Sizeof(segmentSize{}), 24},
		"D3DKMT_ADAPTERADDRESS":                         {unsafe.Sizeof(adapterAddress{}), 12},
		"D3DKMT_ADAPTERREGISTRYINFO":                    {unsafe.Sizeof(registryInfo{}), 2080},
		"D3DKMT_QUERY_DEVICE_IDS":                       {unsafe.Sizeof(deviceIDs{}), 28},
		"D3DKMT_QUERY_DEVICE_IDS.DeviceIds.VendorID":    {unsafe.Offsetof(deviceIDs{}.vendor), 4},
		"D3DKMT_QUERY_DEVICE_IDS.DeviceIds.SubSystemID": {unsafe.Offsetof(deviceIDs{}.subSystem), 16},
		"D3DKMT_QUERY_DEVICE_IDS.DeviceIds.RevisionID":  {unsafe.Offsetof(deviceIDs{}.revision), 20},
		"D3DDDI_QUERYREGISTRY_INFO.ValueType":           {unsafe.Offsetof(registryQuery{}.valueType), 528},
		"D3DDDI_QUERYREGISTRY_INFO.OutputValueSize":     {unsafe.Offsetof(registryQuery{}.outputSize), 536},
		"D3DDDI_QUERYREGISTRY_INFO.Status":              {unsafe.Offsetof(registryQuery{}.status), 540},
		"D3DDDI_QUERYREGISTRY_INFO.OutputString":        {unsafe.Offsetof(storePathQuery{}.output), 544},
	} {
		if numbers[0] != numbers[1] {
			t.Errorf("%s: %#x, want %#x", name, numbers[0], numbers[1])
		}
	}
}
