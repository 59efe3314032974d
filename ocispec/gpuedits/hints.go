package gpuedits

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/ocispec"
)

// Environment variables that name a container's GPUs. A Windows container sees every GPU of the
// node, not only those that it was given.
// https://github.com/microsoft/Windows-Containers/issues/333
const (
	// DevicesVariable is a JSON list of [Hint].
	DevicesVariable = "DIRECTX_DEVICES"
	// CUDAVariable is a comma-separated list of the UUIDs of the container's NVIDIA GPUs.
	// https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
	CUDAVariable = "CUDA_VISIBLE_DEVICES"
	// MesaVariable is the name of the adapter that Mesa's OpenGL and Vulkan drivers for
	// Direct3D 12 use in a Linux VM.
	// https://github.com/microsoft/wslg/wiki/GPU-selection-in-WSLg
	MesaVariable = "MESA_D3D12_DEFAULT_ADAPTER_NAME"
	// hsaVariable is 1 for AMD's GPUs in a Linux VM: ROCm before 7.13 looks for /dev/dxg only then.
	// https://github.com/ROCm/librocdxg
	hsaVariable = "HSA_ENABLE_DXG_DETECTION"
)

// Hint describes one GPU. Unknown values are left out.
type Hint struct {
	LocationPath string `json:"locationPath,omitempty"`
	// LUID is in the form of [discovery.LUID.String]. It identifies the adapter in
	// Direct3D, DXCore and Vulkan.
	LUID        string `json:"luid,omitempty"`
	UUID        string `json:"uuid,omitempty"`
	Description string `json:"description,omitempty"`
	// Segment, BusNumber, Device and Function are the PCI address. Segment is left
	// out when it is 0.
	Segment   uint32  `json:"segment,omitempty"`
	BusNumber *uint32 `json:"busNumber,omitempty"`
	Device    *uint32 `json:"device,omitempty"`
	Function  *uint32 `json:"function,omitempty"`
}

// visibilityHints returns the environment variables, as NAME=value, that name devices to a container
// with the environment env. Those that env sets are left out.
//
// [CUDAVariable] has UUIDs, because an index would select another GPU, or none, once Windows shows
// containers only their own GPUs. It is not set when a UUID is unknown or there are AMD GPUs,
// because HIP reads it, too, and understands indices only.
func visibilityHints(containerOS string, devices []discovery.Device, env []string) (variables []string) {
	if len(devices) == 0 {
		return nil
	}
	add := func(name, value string) {
		if _, isSet := ocispec.LookupEnv(containerOS, env, name); !isSet {
			variables = append(variables, name+"="+value)
		}
	}
	hints := make([]Hint, len(devices))
	for i, d := range devices {
		hints[i] = newHint(d)
	}
	list, _ := json.Marshal(hints) // It has no value that cannot be encoded.
	add(DevicesVariable, string(list))
	if ids := cudaUUIDs(devices); len(ids) > 0 {
		add(CUDAVariable, strings.Join(ids, ","))
	}
	// Only the description of a discovered GPU, which has a LUID, is the name of its adapter.
	if d := devices[0]; containerOS == "linux" && len(devices) == 1 && d.LUID != 0 && d.Description != "" {
		add(MesaVariable, d.Description)
	}
	isAMD := func(d discovery.Device) bool { return d.VendorID == pci.VendorAMD && d.LUID != 0 }
	if containerOS == "linux" && slices.ContainsFunc(devices, isAMD) {
		add(hsaVariable, "1")
	}
	return variables
}

func newHint(d discovery.Device) Hint {
	h := Hint{LocationPath: d.LocationPath, UUID: d.UUID, Description: d.Description}
	if d.LUID != 0 {
		h.LUID = d.LUID.String()
	}
	if segment, bus, device, function, ok := d.PCIAddress(); ok {
		h.Segment, h.BusNumber, h.Device, h.Function = segment, &bus, &device, &function
	}
	return h
}

// cudaUUIDs returns the UUIDs for [CUDAVariable], nil if it must not be set.
func cudaUUIDs(devices []discovery.Device) []string {
	var ids []string
	for _, d := range devices {
		switch d.VendorID {
		case pci.VendorAMD:
			return nil
		case pci.VendorNVIDIA:
			if d.UUID == "" {
				return nil
			}
			ids = append(ids, d.UUID)
		}
	}
	return ids
}
