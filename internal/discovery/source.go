package discovery

import (
	"context"
	"slices"
)

// Source lists the GPUs of a node. It is safe for concurrent use, unless it is said where it is created.
type Source interface {
	// Devices returns the current devices in a stable order. The caller can change the slice. If the
	// driver fails or does not answer, Devices returns the last list, with all devices unhealthy.
	Devices(ctx context.Context) ([]Device, error)

	// Find returns the present devices with the given instance IDs, in any order, with their
	// health and everything that a container is given. It reads them at each call, which can take
	// less time than Devices. It can know less of a device than Devices, so the kind can differ.
	Find(ctx context.Context, instanceIDs []string) ([]Device, error)

	// At returns the device with this index in the list of Devices, and reports whether there is
	// one. It can take less time than Devices.
	At(ctx context.Context, index int) (device Device, ok bool, err error)
}

// Static is a [Source] whose devices never change.
type Static []Device

// Devices implements [Source].
func (s Static) Devices(context.Context) ([]Device, error) { return slices.Clone(s), nil }

// Find implements [Source].
func (s Static) Find(_ context.Context, instanceIDs []string) ([]Device, error) {
	return WithIDs(s, instanceIDs), nil
}

// At implements [Source].
func (s Static) At(_ context.Context, index int) (Device, bool, error) { return at(s, index, nil) }

func at(devices []Device, index int, err error) (Device, bool, error) {
	if err != nil || index >= len(devices) {
		return Device{}, false, err
	}
	return devices[index], true, nil
}

// Unavailable returns a source whose calls fail with err.
func Unavailable(err error) Source { return unavailable{err} }

type unavailable struct{ err error }

func (u unavailable) Devices(context.Context) ([]Device, error) { return nil, u.err }

func (u unavailable) Find(context.Context, []string) ([]Device, error) { return nil, u.err }

func (u unavailable) At(context.Context, int) (Device, bool, error) { return Device{}, false, u.err }

// WithIDs returns the elements of devices with the given instance IDs.
func WithIDs(devices []Device, instanceIDs []string) []Device {
	return slices.DeleteFunc(slices.Clone(devices), func(d Device) bool { return !ContainsID(instanceIDs, d.InstanceID) })
}
