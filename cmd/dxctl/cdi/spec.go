package cdi

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/directx-nri/directx-nri/ocispec"
)

// Kind is the CDI kind of the GPUs: containers request directx.microsoft.com/gpu=NAME.
const Kind = "directx.microsoft.com/gpu"

type device struct {
	name  string
	edits ocispec.Edits
}

// newSpec returns the specification of devices, in the oldest version that can express them:
// Podman 4 reads no version after 0.5.0. An error means that a name is not valid or not unique, or
// that CDI has no counterpart for an edit.
// https://github.com/cncf-tags/container-device-interface/blob/v1.1.1/SPEC.md
func newSpec(devices []device) (*cdispec.Spec, error) {
	spec := &cdispec.Spec{Kind: Kind}
	for i, d := range devices {
		if err := parser.ValidateDeviceName(d.name); err != nil {
			return nil, fmt.Errorf("CDI device %q: %w", d.name, err)
		}
		if slices.ContainsFunc(devices[:i], func(other device) bool { return other.name == d.name }) {
			return nil, fmt.Errorf("two GPUs have the CDI name %q: change an instanceID in the inventory", d.name)
		}
		if len(d.edits.RemoveMounts)+len(d.edits.RemoveWindowsDevices)+len(d.edits.WindowsDevices) > 0 {
			return nil, fmt.Errorf("CDI device %q: %w", d.name, errors.ErrUnsupported)
		}
		spec.Devices = append(spec.Devices, cdispec.Device{Name: d.name, ContainerEdits: containerEdits(d.edits)})
	}
	version, err := cdispec.MinimumRequiredVersion(spec)
	if err != nil {
		return nil, fmt.Errorf("version of the CDI specification: %w", err)
	}
	spec.Version = version
	return spec, nil
}

func containerEdits(edits ocispec.Edits) cdispec.ContainerEdits {
	converted := cdispec.ContainerEdits{Env: edits.Env}
	for _, d := range edits.LinuxDevices {
		// The runtime reads the device numbers: they change when the driver is loaded again.
		converted.DeviceNodes = append(converted.DeviceNodes, &cdispec.DeviceNode{
			Path: d.Path, HostPath: d.HostPath, Permissions: ocispec.DeviceAccess(d.LinuxDevice),
			FileMode: d.FileMode, UID: d.UID, GID: d.GID,
		})
	}
	for _, m := range edits.Mounts {
		converted.Mounts = append(converted.Mounts,
			&cdispec.Mount{HostPath: m.Source, ContainerPath: m.Destination, Options: m.Options, Type: m.Type})
	}
	return converted
}

// Name returns text as the name of a CDI device: characters that are not allowed become hyphens.
func Name(text string) string {
	name := strings.Map(func(r rune) rune {
		if parser.IsAlphaNumeric(r) || strings.ContainsRune("_-.:", r) {
			return r
		}
		return '-'
	}, text)
	return strings.Trim(name, "_-.:")
}
