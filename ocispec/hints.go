package ocispec

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"directx-nri/discovery"
)

// Variables that tell a container's programs which GPUs are theirs. On Windows a
// container sees every GPU of the node, whichever it was given.
// https://github.com/microsoft/Windows-Containers/issues/333
const (
	// DevicesVariable has a JSON list of [Hint].
	DevicesVariable = "DIRECTX_DEVICES"
	// CUDAVariable has the UUIDs of the container's NVIDIA GPUs, parted by commas.
	// https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
	CUDAVariable = "CUDA_VISIBLE_DEVICES"
)

// Hint is what a program is told of one GPU. What is not known is left out.
type Hint struct {
	LocationPath string `json:"locationPath,omitempty"`
	// LUID is as [discovery.LUID.String] writes it. It is that of Direct3D's,
	// DXCore's and Vulkan's adapters.
	LUID        string `json:"luid,omitempty"`
	UUID        string `json:"uuid,omitempty"`
	Description string `json:"description,omitempty"`
	// BusNumber, Device and Function are the place on the PCI bus, and Segment its
	// segment where it is not 0.
	Segment   uint32  `json:"segment,omitempty"`
	BusNumber *uint32 `json:"busNumber,omitempty"`
	Device    *uint32 `json:"device,omitempty"`
	Function  *uint32 `json:"function,omitempty"`
}

// Hints returns the variables, as NAME=value, that tell the programs of a container
// with the variables env that devices are theirs. A variable that the container
// sets itself is left as it is.
//
// CUDA is told UUIDs or nothing: an index would point to another GPU, or to none,
// on the day that Windows shows containers their own GPUs alone. So it is told
// nothing when one UUID is not known, and neither when there are GPUs of AMD among
// the devices, whose HIP reads the same variable and knows indices only.
func Hints(os OS, devices []discovery.Device, env []string) ([]string, error) {
	if len(devices) == 0 {
		return nil, nil
	}
	var variables []string
	add := func(name, value string) {
		if !isSet(os, env, name) {
			variables = append(variables, name+"="+value)
		}
	}
	hints := make([]Hint, len(devices))
	for i, d := range devices {
		hints[i] = hint(d)
	}
	text, err := json.Marshal(hints)
	if err != nil {
		return nil, fmt.Errorf("describe the GPUs to the container: %w", err)
	}
	add(DevicesVariable, string(text))
	if ids := cudaUUIDs(devices); len(ids) > 0 {
		add(CUDAVariable, strings.Join(ids, ","))
	}
	return variables, nil
}

func hint(d discovery.Device) Hint {
	h := Hint{LocationPath: d.LocationPath, UUID: d.UUID, Description: d.Description}
	if d.LUID != 0 {
		h.LUID = d.LUID.String()
	}
	if segment, bus, device, function, ok := d.PCIPlace(); ok {
		h.Segment, h.BusNumber, h.Device, h.Function = segment, &bus, &device, &function
	}
	return h
}

// cudaUUIDs returns what CUDA may be told, nothing when that would be wrong.
func cudaUUIDs(devices []discovery.Device) []string {
	var ids []string
	for _, d := range devices {
		switch d.VendorID {
		case discovery.VendorAMD:
			return nil
		case discovery.VendorNVIDIA:
			if !isUUID(d.UUID) {
				return nil
			}
			ids = append(ids, d.UUID)
		}
	}
	return ids
}

// isUUID tells whether text can stand in CUDA's list: it is one GPU's whole UUID.
func isUUID(text string) bool {
	digits, ours := strings.CutPrefix(text, "GPU-")
	if !ours || len(digits) != len("8932f937-d72c-4106-c12f-20bd9faed9f6") {
		return false
	}
	return strings.Trim(strings.ToLower(digits), "0123456789abcdef-") == ""
}

// isSet tells whether env has the variable name, with whatever value. Windows
// reads a variable whatever its case.
func isSet(os OS, env []string, name string) bool {
	return slices.ContainsFunc(env, func(variable string) bool {
		set, _, _ := strings.Cut(variable, "=")
		return set == name || os == Windows && strings.EqualFold(set, name)
	})
}
