package main

import (
	"context"

	"github.com/directx-nri/directx-nri/discovery/dxg"
)

const libraries = "libdxcore.so libd3d12.so libcuda.so.1 libnvidia-encode.so.1 nvidia-smi"

func probeGPUs(ctx context.Context) (gpus []finding, err error) {
	devices, err := dxg.Open("").Devices(ctx)
	for _, d := range devices {
		if !d.Software {
			gpus = append(gpus, probedGPU(d.Description, d.LUID, d.Health.Reason))
		}
	}
	return gpus, err
}
