package advertiser

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/internal/ocispec"
)

func TestNewAnswer(t *testing.T) {
	t.Parallel()
	gpu := specs.WindowsDevice{IDType: ocispec.IDTypeLocationPath, ID: "PCIROOT(0)#PCI(1B00)"}
	for name, test := range map[string]struct {
		edits ocispec.Edits
		want  *v1beta1.ContainerAllocateResponse
		err   bool
	}{
		"nothing": {want: &v1beta1.ContainerAllocateResponse{}},
		// containerd on Windows refuses a device with a ContainerPath or Permissions.
		"Windows": {
			edits: ocispec.Edits{WindowsDevices: []specs.WindowsDevice{gpu}, Mounts: []specs.Mount{ocispec.ReadOnlyMount("windows", `C:\store\a.dll`, `C:\a.dll`)}},
			want: &v1beta1.ContainerAllocateResponse{
				Devices: []*v1beta1.DeviceSpec{{HostPath: "vpci-location-path://PCIROOT(0)#PCI(1B00)"}},
				Mounts:  []*v1beta1.Mount{{HostPath: `C:\store\a.dll`, ContainerPath: `C:\a.dll`, ReadOnly: true}},
			},
		},
		"Windows, by class": {
			edits: ocispec.Edits{WindowsDevices: []specs.WindowsDevice{{IDType: ocispec.IDTypeClass, ID: ocispec.DisplayClass}}},
			want:  &v1beta1.ContainerAllocateResponse{Devices: []*v1beta1.DeviceSpec{{HostPath: "class/" + ocispec.DisplayClass}}},
		},
		"Windows, two": {edits: ocispec.Edits{WindowsDevices: []specs.WindowsDevice{gpu, gpu}}, err: true},
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
		got, err := newAnswer(test.edits)
		if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" || (err != nil) != test.err {
			t.Errorf("%s: %v, answer (-want +got):\n%s", name, err, diff)
		}
	}
}
