// Package adjustment carries [ocispec.Edits] over NRI: into a
// ContainerAdjustment, and out of one again.
package adjustment

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"directx-nri/ocispec"
)

// ErrUnsupported tells an adjustment with something in it that no edit stands
// for.
var ErrUnsupported = errors.New("the adjustment cannot be applied")

// deviceVendor is the vendor of the CDI names that carry Windows devices.
const deviceVendor = "directx.microsoft.com"

// New returns edits as an NRI ContainerAdjustment for a container that has the
// mounts existing already. Those win: an edit at the same destination is
// left out, for the runtime would replace the container's own with it.
//
// NRI has nothing that becomes windows.devices, so a Windows device travels as
// the name of a CDI device, directx.microsoft.com/vpci-location-path=PCIROOT_280_29_23PCI_281B00_29,
// in the adjustment's own list of such names. [Apply] resolves it. Nothing in a
// container's spec, and nothing that a pod or an image can set, becomes an
// entry of that list. And any other runtime that is handed such an adjustment
// finds that it cannot resolve the device and fails the container, instead of
// starting it without.
func New(edits ocispec.Edits, os ocispec.OS, existing []*api.Mount) *api.ContainerAdjustment {
	adjustment := &api.ContainerAdjustment{}
	for key, value := range edits.Annotations {
		adjustment.AddAnnotation(key, value)
	}
	for _, variable := range edits.Env {
		name, value, _ := strings.Cut(variable, "=")
		adjustment.AddEnv(name, value)
	}
	for _, d := range edits.WindowsDevices {
		adjustment.AddCDIDevice(&api.CDIDevice{Name: encodeDevice(d)})
	}
	for _, d := range edits.LinuxDevices {
		adjustment.AddDevice(&api.LinuxDevice{
			Path: d.Path, Type: d.Type, Major: d.Major, Minor: d.Minor,
			FileMode: api.FileMode(d.FileMode), Uid: api.UInt32(d.UID), Gid: api.UInt32(d.GID),
		})
	}
	taken := map[string]bool{}
	for _, m := range existing {
		taken[ocispec.DestinationKey(os, m.GetDestination())] = true
	}
	for _, m := range edits.Mounts {
		if !taken[ocispec.DestinationKey(os, m.Destination)] {
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
	if !ours || !found || idType != ocispec.IDTypeLocationPath && idType != ocispec.IDTypeClass || encoded == "" {
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

// Edits returns what adjustment asks for. Its error matches [ErrUnsupported]
// when there is anything in it that edits have no place for, so that what a
// later NRI adds is refused and not overlooked.
func Edits(adjustment *api.ContainerAdjustment) (ocispec.Edits, error) {
	if err := checkSupported(adjustment); err != nil {
		return ocispec.Edits{}, err
	}
	edits := ocispec.Edits{Annotations: adjustment.GetAnnotations()}
	for _, e := range adjustment.GetEnv() {
		edits.Env = append(edits.Env, e.GetKey()+"="+e.GetValue())
	}
	for _, name := range adjustment.GetCDIDevices() {
		if d, ok := decodeDevice(name.GetName()); ok {
			edits.WindowsDevices = append(edits.WindowsDevices, d)
		}
	}
	for _, d := range adjustment.GetLinux().GetDevices() {
		edits.LinuxDevices = append(edits.LinuxDevices, d.ToOCI())
	}
	for _, m := range adjustment.GetMounts() {
		edits.Mounts = append(edits.Mounts, m.ToOCI(nil))
	}
	return edits, nil
}

// checkSupported takes what Edits knows out of a copy of adjustment and sees
// whether anything is left, so that what a later NRI adds is refused and not
// overlooked.
func checkSupported(adjustment *api.ContainerAdjustment) error {
	rest, ok := proto.Clone(adjustment).(*api.ContainerAdjustment)
	if !ok || rest == nil {
		return nil
	}
	for _, d := range rest.GetCDIDevices() {
		if _, ok := decodeDevice(d.GetName()); !ok {
			return fmt.Errorf("%w: CDI device %q is not one of ours", ErrUnsupported, d.GetName())
		}
	}
	for _, m := range rest.GetMounts() {
		if destination, removal := m.IsMarkedForRemoval(); removal {
			return fmt.Errorf("%w: removal of the mount at %s", ErrUnsupported, destination)
		}
	}
	for _, d := range rest.GetLinux().GetDevices() {
		if path, removal := d.IsMarkedForRemoval(); removal {
			return fmt.Errorf("%w: removal of the device %s", ErrUnsupported, path)
		}
	}
	for _, e := range rest.GetEnv() {
		if name, removal := e.IsMarkedForRemoval(); removal {
			return fmt.Errorf("%w: removal of the variable %s", ErrUnsupported, name)
		}
	}
	for key := range rest.GetAnnotations() {
		if name, removal := api.IsMarkedForRemoval(key); removal {
			return fmt.Errorf("%w: removal of the annotation %s", ErrUnsupported, name)
		}
	}
	rest.Annotations, rest.Env, rest.Mounts, rest.CDIDevices = nil, nil, nil, nil
	if rest.Linux != nil {
		rest.Linux.Devices = nil
	}
	if asks(rest.ProtoReflect()) {
		return fmt.Errorf("%w: it asks for %s", ErrUnsupported, rest)
	}
	return nil
}

// asks tells whether message has anything in it. NRI's runtime side merges the
// answers of several plugins into one with empty messages in it. An optional
// value is one whatever it is, for it is left out when it is not meant.
func asks(message protoreflect.Message) bool {
	found := false
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if field.Message() == nil || field.IsList() || field.IsMap() || strings.HasPrefix(string(field.Message().Name()), "Optional") {
			found = true
		} else {
			found = asks(value.Message())
		}
		return !found
	})
	return found
}
