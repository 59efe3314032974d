package nri

import (
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"github.com/directx-nri/directx-nri/ocispec"
)

// newAdjustment returns edits as an adjustment of a container that has the given mounts. A mount at
// the destination of one of them is left out: the runtime would replace the container's own mount.
// To remove a mount, the adjustment has the container's own spelling of the destination, because the
// runtime compares the strings.
func newAdjustment(edits ocispec.Edits, mounts []*api.Mount) *api.ContainerAdjustment {
	key := func(destination string) string { return ocispec.DestinationKey("linux", destination) }
	adjustment := &api.ContainerAdjustment{}
	taken := map[string]bool{}
	for _, m := range mounts {
		destination := key(m.GetDestination())
		if slices.ContainsFunc(edits.RemoveMounts, func(d string) bool { return key(d) == destination }) {
			adjustment.RemoveMount(m.GetDestination())
		} else {
			taken[destination] = true
		}
	}
	for _, variable := range edits.Env {
		name, value, _ := strings.Cut(variable, "=")
		adjustment.AddEnv(name, value)
	}
	for _, d := range edits.LinuxDevices {
		adjustment.AddDevice(&api.LinuxDevice{
			Path: d.Path, Type: d.Type, Major: d.Major, Minor: d.Minor,
			FileMode: api.FileMode(d.FileMode), Uid: api.UInt32(d.UID), Gid: api.UInt32(d.GID),
		})
	}
	for _, m := range edits.Mounts {
		if !taken[key(m.Destination)] {
			adjustment.AddMount(&api.Mount{Source: m.Source, Destination: m.Destination, Type: m.Type, Options: m.Options})
		}
	}
	return adjustment
}
