package ocispec

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// deviceVendor is the vendor of the CDI names that carry Windows devices.
const deviceVendor = "directx.microsoft.com"

// Adjustment returns e as an NRI ContainerAdjustment for a container that has
// the mounts existing already. Those win: an edit at the same destination is
// left out, for the runtime would replace the container's own with it.
//
// NRI has nothing that becomes windows.devices, so a Windows device travels as
// the name of a CDI device, directx.microsoft.com/vpci-location-path=PCIROOT_280_29_23PCI_281B00_29,
// in the adjustment's own list of such names. [Apply] resolves it. Nothing in a
// container's spec, and nothing that a pod or an image can set, becomes an
// entry of that list. And any other runtime that is handed such an adjustment
// finds that it cannot resolve the device and fails the container, instead of
// starting it without.
func (e Edits) Adjustment(os OS, existing []*api.Mount) *api.ContainerAdjustment {
	adjustment := &api.ContainerAdjustment{}
	for _, d := range e.WindowsDevices {
		adjustment.AddCDIDevice(&api.CDIDevice{Name: encodeDevice(d)})
	}
	for _, d := range e.LinuxDevices {
		adjustment.AddDevice(&api.LinuxDevice{
			Path: d.Path, Type: d.Type, Major: d.Major, Minor: d.Minor,
			FileMode: api.FileMode(d.FileMode), Uid: api.UInt32(d.UID), Gid: api.UInt32(d.GID),
		})
	}
	taken := map[string]bool{}
	for _, m := range existing {
		taken[destinationKey(os, m.GetDestination())] = true
	}
	for _, m := range e.Mounts {
		if !taken[destinationKey(os, m.Destination)] {
			adjustment.AddMount(&api.Mount{Source: m.Source, Destination: m.Destination, Type: m.Type, Options: m.Options})
		}
	}
	return adjustment
}

// encodeDevice returns d as a fully qualified CDI device name. What a CDI name
// cannot have in it is written as "_" and two hexadecimal digits.
// https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
func encodeDevice(d specs.WindowsDevice) string {
	var name strings.Builder
	fmt.Fprintf(&name, "%s/%s=", deviceVendor, d.IDType)
	for i := range len(d.ID) {
		if c := d.ID[i]; plain(c) {
			name.WriteByte(c)
		} else {
			fmt.Fprintf(&name, "_%02X", c)
		}
	}
	return name.String()
}

// decodeDevice is the inverse of encodeDevice; ok is false for a name that
// encodeDevice did not make.
func decodeDevice(name string) (d specs.WindowsDevice, ok bool) {
	rest, ours := strings.CutPrefix(name, deviceVendor+"/")
	idType, encoded, found := strings.Cut(rest, "=")
	if !ours || !found || idType != idTypeLocationPath || encoded == "" {
		return specs.WindowsDevice{}, false
	}
	var id strings.Builder
	for i := 0; i < len(encoded); i++ {
		c := encoded[i]
		if plain(c) {
			id.WriteByte(c)
			continue
		}
		if c != '_' || i+2 >= len(encoded) {
			return specs.WindowsDevice{}, false
		}
		value, err := strconv.ParseUint(encoded[i+1:i+3], 16, 8)
		if err != nil {
			return specs.WindowsDevice{}, false
		}
		id.WriteByte(byte(value))
		i += 2
	}
	d = specs.WindowsDevice{ID: id.String(), IDType: idType}
	return d, encodeDevice(d) == name
}

func plain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.'
}
