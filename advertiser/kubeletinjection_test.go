package advertiser

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/advertiser/deviceplugin"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/ocispec"
)

const store = `C:\Windows\System32\DriverStore\FileRepository\`

// windowsGPU is a GPU of a driver of its own, by its name.
func windowsGPU(name, driver string) discovery.Device {
	return discovery.Device{
		InstanceID: `PCI\` + name, LocationPath: "PCIROOT(0)#PCI(" + name + ")", SupportsDisplay: true, VendorID: pci.VendorNVIDIA,
		DriverStorePath: store + driver,
		System32:        []discovery.RuntimeFile{{Source: "nvcuda.dll", Destination: "nvcuda.dll"}},
		SysWOW64:        []discovery.RuntimeFile{{Source: "nvcuda32.dll", Destination: "nvcuda.dll"}},
	}
}

func linuxGPU(name string) discovery.Device {
	return discovery.Device{
		InstanceID: `VMBUS\` + name, SupportsDisplay: true,
		DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg" + name, ContainerPath: "/dev/dxg"}},
		Libraries:   []discovery.Library{{Source: "/lib/d3d12.so", Destination: "/usr/lib/wsl/lib/d3d12.so"}},
	}
}

func testRun(os string, p policy.Policy, devices ...discovery.Device) *run {
	d := New(Options{}, config.Compiler{NodeOS: os}, "v", testutil.Quiet())
	return &run{Daemon: d, source: discovery.Static(devices), files: hostfiles.Assumed{}, policy: policy.Resolved{Policy: p}}
}

func TestInject(t *testing.T) {
	t.Parallel()
	unhealthy, linux := windowsGPU("1D00", "nv.inf"), linuxGPU("0")
	unhealthy.Health.Reason = "it stopped"
	linux.LibraryPath = []string{"/usr/lib/wsl/lib"}
	for name, test := range map[string]struct {
		os             string
		ids            []string
		want           *v1beta1.ContainerAllocateResponse
		err            string
		notExpressible bool
	}{
		// containerd on Windows refuses a device with a ContainerPath or Permissions.
		"Windows": {os: "windows", ids: []string{`PCI\1B00`}, want: &v1beta1.ContainerAllocateResponse{
			Devices: []*v1beta1.DeviceSpec{{HostPath: "vpci-location-path://PCIROOT(0)#PCI(1B00)"}},
			Mounts: []*v1beta1.Mount{
				{HostPath: store + `nv.inf\nvcuda.dll`, ContainerPath: `C:\Windows\System32\nvcuda.dll`, ReadOnly: true},
				{HostPath: store + `nv.inf\nvcuda32.dll`, ContainerPath: `C:\Windows\SysWOW64\nvcuda.dll`, ReadOnly: true},
			},
		}},
		// The library path would replace the image's LD_LIBRARY_PATH.
		"Linux": {os: "linux", ids: []string{`VMBUS\0`}, want: &v1beta1.ContainerAllocateResponse{
			Devices: []*v1beta1.DeviceSpec{{HostPath: "/dev/dxg0", ContainerPath: "/dev/dxg", Permissions: "rw"}},
			Mounts:  []*v1beta1.Mount{{HostPath: "/lib/d3d12.so", ContainerPath: "/usr/lib/wsl/lib/d3d12.so", ReadOnly: true}},
		}},
		"two":       {os: "windows", ids: []string{`PCI\1B00`, `PCI\1C00`}, err: "2 GPUs for one container", notExpressible: true},
		"unhealthy": {os: "windows", ids: []string{`PCI\1D00`}, err: "cannot be used: it stopped; restore the GPU"},
		"gone":      {os: "windows", ids: []string{`PCI\FF00`}, err: "no longer on this node; restore the GPU"},
		"no node":   {os: "linux", ids: []string{`PCI\1B00`}, err: "no device node; run 'dxctl doctor'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			noDefaults := map[pci.Vendor]policy.RuntimeFiles{pci.VendorNVIDIA: {Defaults: new(false)}}
			r := testRun(test.os, policy.Policy{RuntimeFiles: noDefaults}, windowsGPU("1B00", "nv.inf"), windowsGPU("1C00", "nv.inf"), unhealthy, linux, linuxGPU("1"))
			var replicas []allocation.Replica
			for _, id := range test.ids {
				replicas = append(replicas, allocation.Replica{InstanceID: id, UUID: "GPU-of-" + id})
			}
			got, err := r.inject(t.Context(), "x/y", replicas)
			if test.err != "" {
				testutil.CheckError(t, "inject", err, test.err)
				if isRequest := errors.Is(err, deviceplugin.ErrInvalidRequest); isRequest != test.notExpressible {
					t.Errorf("the request is to blame: %t", isRequest)
				}
				return
			}
			if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" || err != nil {
				t.Error(err, diff)
			}
		})
	}
}

// TestInjectedUUID: the record of an allocation has the UUID that its source does not query again.
func TestInjectedUUID(t *testing.T) {
	t.Parallel()
	r := testRun("windows", policy.Policy{VisibilityHints: true}, windowsGPU("1B00", "nv.inf"))
	answer, err := r.inject(t.Context(), "x/y", []allocation.Replica{{InstanceID: `PCI\1B00`, UUID: "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"}})
	if got := answer.GetEnvs()["DIRECTX_DEVICES"]; err != nil || !strings.Contains(got, "GPU-8932f937") {
		t.Errorf("%s, %v", got, err)
	}
}

func TestNewResponse(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		edits ocispec.Edits
		want  *v1beta1.ContainerAllocateResponse
	}{
		"nothing": {want: &v1beta1.ContainerAllocateResponse{}},
		"Windows, by class": {
			edits: ocispec.Edits{WindowsDevices: []specs.WindowsDevice{{IDType: ocispec.IDTypeClass, ID: ocispec.DisplayClass}}},
			want:  &v1beta1.ContainerAllocateResponse{Devices: []*v1beta1.DeviceSpec{{HostPath: "class/" + ocispec.DisplayClass}}},
		},
		"Linux": {
			edits: ocispec.Edits{
				LinuxDevices: []ocispec.LinuxDevice{{LinuxDevice: specs.LinuxDevice{Path: "/dev/dxg", Type: "c"}, HostPath: "/dev/dxg0"}},
				Env:          []string{"A=b=c", "B="},
			},
			want: &v1beta1.ContainerAllocateResponse{
				Devices: []*v1beta1.DeviceSpec{{HostPath: "/dev/dxg0", ContainerPath: "/dev/dxg", Permissions: "rw"}},
				Envs:    map[string]string{"A": "b=c", "B": ""},
			},
		},
	} {
		got, err := newResponse(test.edits)
		if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" || err != nil {
			t.Errorf("%s: %v, answer (-want +got):\n%s", name, err, diff)
		}
	}
}
