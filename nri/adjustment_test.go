package nri

import (
	"os"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/directx-nri/directx-nri/ocispec"
)

func TestAdjustment(t *testing.T) {
	t.Parallel()
	mode, group := os.FileMode(0o660), uint32(44)
	library := specs.Mount{Source: "/a", Destination: "/usr/lib/wsl/lib/libd3d12.so", Type: "bind", Options: []string{"ro"}}
	mounts := func(list ...*api.Mount) *api.ContainerAdjustment { return &api.ContainerAdjustment{Mounts: list} }
	added := &api.Mount{Source: "/a", Destination: library.Destination, Type: "bind", Options: []string{"ro"}}
	removed := &api.Mount{Destination: "-/proc//interlock"}
	for name, test := range map[string]struct {
		edits  ocispec.Edits
		mounts []string
		want   *api.ContainerAdjustment
	}{
		"nothing": {want: &api.ContainerAdjustment{}},
		"environment and device": {
			edits: ocispec.Edits{
				Env:          []string{"A=new", "B=with=sign", "C="},
				LinuxDevices: []ocispec.LinuxDevice{{LinuxDevice: specs.LinuxDevice{Path: "/dev/dxg", Type: "c", Major: 10, Minor: 125, FileMode: &mode, GID: &group}}},
			},
			want: &api.ContainerAdjustment{
				Env: []*api.KeyValue{{Key: "A", Value: "new"}, {Key: "B", Value: "with=sign"}, {Key: "C"}},
				Linux: &api.LinuxContainerAdjustment{Devices: []*api.LinuxDevice{{
					Path: "/dev/dxg", Type: "c", Major: 10, Minor: 125, FileMode: api.FileMode(&mode), Gid: api.UInt32(&group),
				}}},
			},
		},
		"mount":                                 {edits: ocispec.Edits{Mounts: []specs.Mount{library}}, mounts: []string{"/data"}, want: mounts(added)},
		"the container's own mount is kept":     {edits: ocispec.Edits{Mounts: []specs.Mount{library}}, mounts: []string{"/usr/lib/wsl//lib/../lib/libd3d12.so"}, want: mounts()},
		"case makes a difference":               {edits: ocispec.Edits{Mounts: []specs.Mount{library}}, mounts: []string{"/usr/lib/WSL/lib/libd3d12.so"}, want: mounts(added)},
		"removal, as the container names it":    {edits: ocispec.Edits{RemoveMounts: []string{"/proc/interlock"}}, mounts: []string{"/proc", "/proc//interlock"}, want: mounts(removed)},
		"removal of what the container has not": {edits: ocispec.Edits{RemoveMounts: []string{"/proc/interlock"}}, mounts: []string{"/proc"}, want: mounts()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var own []*api.Mount
			for _, destination := range test.mounts {
				own = append(own, &api.Mount{Destination: destination})
			}
			if diff := cmp.Diff(test.want, newAdjustment(test.edits, own), protocmp.Transform()); diff != "" {
				t.Errorf("adjustment (-want +got):\n%s", diff)
			}
		})
	}
}
