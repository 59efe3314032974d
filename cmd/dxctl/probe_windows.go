package main

import (
	"context"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/win32"
)

const libraries = "dxcore.dll d3d11.dll d3d12.dll DirectML.dll vulkan-1.dll OpenCL.dll nvcuda.dll nvEncodeAPI64.dll nvidia-smi.exe amfrt64.dll libmfxhw64.dll"

func probeGPUs(context.Context) (gpus []finding, err error) {
	adapters, err := win32.Adapters()
	for _, a := range adapters {
		if a.Hardware {
			gpus = append(gpus, probedGPU(a.Description, discovery.LUID(a.LUID), errlog.Text(win32.CheckDirect3D12(a.LUID))))
		}
	}
	return gpus, errlog.WithRemedy(err, "if the image has no DirectX, use one that has, such as mcr.microsoft.com/windows/server:ltsc2022")
}
