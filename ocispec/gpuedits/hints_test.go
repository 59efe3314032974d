package gpuedits

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/pci"
)

const uuid0, uuid1 = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-11111111-2222-3333-4444-555555555555"

func TestHints(t *testing.T) {
	t.Parallel()
	gpu := func(vendor pci.Vendor, uuid string) discovery.Device {
		return discovery.Device{InstanceID: uuid + vendor.String(), VendorID: vendor, UUID: uuid}
	}
	nvidia, other, amd, intel := gpu(pci.VendorNVIDIA, uuid0), gpu(pci.VendorNVIDIA, uuid1), gpu(pci.VendorAMD, ""), gpu(pci.VendorIntel, "")
	for name, test := range map[string]struct {
		os      string
		devices []discovery.Device
		env     []string
		cuda    string
		hasNone bool // of our list
	}{
		"one":                          {devices: []discovery.Device{nvidia}, cuda: uuid0},
		"two, in their order":          {devices: []discovery.Device{other, nvidia}, cuda: uuid1 + "," + uuid0},
		"one of them is not known":     {devices: []discovery.Device{nvidia, gpu(pci.VendorNVIDIA, "")}},
		"with Intel's":                 {devices: []discovery.Device{intel, nvidia}, cuda: uuid0},
		"with AMD's, which reads it":   {devices: []discovery.Device{nvidia, amd}},
		"Intel's alone":                {devices: []discovery.Device{intel}},
		"the container's own":          {devices: []discovery.Device{nvidia}, env: []string{"CUDA_VISIBLE_DEVICES=1"}},
		"the container's own, none":    {devices: []discovery.Device{nvidia}, env: []string{"CUDA_VISIBLE_DEVICES="}},
		"the container's, in any case": {devices: []discovery.Device{nvidia}, env: []string{"cuda_Visible_devices=1", "Directx_Devices=x"}, hasNone: true},
		"another case on Linux":        {os: "linux", devices: []discovery.Device{nvidia}, env: []string{"cuda_visible_devices=1"}, cuda: uuid0},
		"begins alike":                 {devices: []discovery.Device{nvidia}, env: []string{"CUDA_VISIBLE_DEVICES_X=1"}, cuda: uuid0},
		"no GPU":                       {hasNone: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			os := test.os
			if os == "" {
				os = "windows"
			}
			got := visibilityHints(os, test.devices, test.env)
			var cuda string
			ours := false
			for _, variable := range got {
				name, value, _ := strings.Cut(variable, "=")
				switch name {
				case CUDAVariable:
					cuda = value
				case DevicesVariable:
					ours = true
				default:
					t.Errorf("unexpected %s", variable)
				}
			}
			if cuda != test.cuda || ours == test.hasNone {
				t.Errorf("%v, want %q", got, test.cuda)
			}
			if again := visibilityHints(os, test.devices, append(got, test.env...)); len(again) > 0 && test.cuda != "" {
				t.Errorf("again: %v", again)
			}
		})
	}
}

func TestDevicesVariableHasTheFacts(t *testing.T) {
	t.Parallel()
	devices := []discovery.Device{
		{
			LocationPath: "PCIROOT(0)#PCI(1B00)", LUID: 0xC2F5, UUID: uuid0, Description: `NVIDIA "T4" <a>`,
			BusNumber: new(uint32(0xFF00011B)), Address: new(uint32(3<<16 | 1)),
		},
		{Address: new(uint32)}, // The bus is unknown.
	}
	got := visibilityHints("windows", devices, nil)
	if len(got) != 1 {
		t.Fatal(got)
	}
	value, ok := strings.CutPrefix(got[0], "DIRECTX_DEVICES=")
	var list []map[string]any
	if err := json.Unmarshal([]byte(value), &list); err != nil || !ok {
		t.Fatalf("%s: %v", got[0], err)
	}
	want := []map[string]any{
		{
			"locationPath": "PCIROOT(0)#PCI(1B00)", "luid": "0x00000000_0x0000C2F5", "uuid": uuid0, "description": `NVIDIA "T4" <a>`,
			"segment": 1.0, "busNumber": 27.0, "device": 3.0, "function": 1.0,
		},
		{},
	}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
}
