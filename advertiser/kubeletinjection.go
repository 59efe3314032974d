package advertiser

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/advertiser/deviceplugin"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
)

// inject is [deviceplugin.Config.Inject] if the configuration has injection: kubelet. The response has the edits
// that the NRI plugin and the shim make, as far as a response can express them.
func (r *run) inject(ctx context.Context, resource string, replicas []allocation.Replica) (*v1beta1.ContainerAllocateResponse, error) {
	devices, err := discovery.Allocated(ctx, r.source, replicas)
	if err != nil {
		return nil, errlog.WithRemedy(err, errlog.RunDoctor)
	}
	for n := range devices {
		devices[n].LibraryPath = nil // It would replace the image's LD_LIBRARY_PATH.
	}
	edits, skipped, err := gpuedits.Build(r.compiler.NodeOS, devices, nil, r.files, r.policy)
	if err != nil {
		return nil, errlog.WithRemedy(err, errlog.RunDoctor)
	}
	for _, file := range skipped {
		r.log.WithField("resource", resource).Warn(file)
	}
	return newResponse(edits)
}

// newResponse returns edits as a response for one container, or an error if the kubelet cannot pass them
// on. A response has no mount options but read-only: containerd mounts with its own defaults.
//
// containerd's CRI on Windows accepts devices without ContainerPath and Permissions
// only (WithWindowsDevices in pkg/cri/opts/spec_windows_opts.go of 1.7, and still in
// 2.4), and the kubelet keeps one of several devices with the same ContainerPath.
func newResponse(edits ocispec.Edits) (*v1beta1.ContainerAllocateResponse, error) {
	if n := len(edits.WindowsDevices); n > 1 {
		err := fmt.Errorf("%w: %d GPUs for one container, and on Windows the kubelet passes on one", deviceplugin.ErrInvalidRequest, n)
		return nil, errlog.WithRemedy(err, "request one, or set injection: shim in the configuration")
	}
	response := &v1beta1.ContainerAllocateResponse{Envs: make(map[string]string, len(edits.Env))}
	for _, d := range edits.WindowsDevices {
		hostPath := d.IDType + "://" + d.ID
		if d.IDType == ocispec.IDTypeClass {
			hostPath = "class/" + d.ID // The form that was seen to work on real nodes.
		}
		response.Devices = append(response.Devices, &v1beta1.DeviceSpec{HostPath: hostPath})
	}
	for _, d := range edits.LinuxDevices {
		response.Devices = append(response.Devices, &v1beta1.DeviceSpec{
			HostPath: d.HostPath, ContainerPath: d.Path, Permissions: ocispec.DeviceAccess(d.LinuxDevice),
		})
	}
	for _, m := range edits.Mounts {
		response.Mounts = append(response.Mounts, &v1beta1.Mount{HostPath: m.Source, ContainerPath: m.Destination, ReadOnly: true})
	}
	for _, variable := range edits.Env {
		name, value, _ := strings.Cut(variable, "=")
		response.Envs[name] = value
	}
	return response, nil
}
