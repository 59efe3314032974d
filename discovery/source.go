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

	// Find returns the present devices with these instance IDs, in any order, with their health and
	// everything that a container is given. It reads them at each call, which can take less time than
	// Devices. It can know less of a device than Devices, so the kind can differ.
	Find(ctx context.Context, instanceIDs []string) ([]Device, error)
}

// WithIDs returns the elements of devices with these instance IDs.
func WithIDs(devices []Device, instanceIDs []string) (found []Device) {
	for _, d := range devices {
		if ContainsID(instanceIDs, d.InstanceID) {
			found = append(found, d)
		}
	}
	return found
}

// Static is a [Source] whose devices never change.
type Static []Device

// Devices implements [Source].
func (s Static) Devices(context.Context) ([]Device, error) { return slices.Clone(s), nil }

// Find implements [Source].
func (s Static) Find(_ context.Context, instanceIDs []string) ([]Device, error) {
	return WithIDs(s, instanceIDs), nil
}

// Unavailable returns a source whose calls fail with err.
func Unavailable(err error) Source { return unavailable{err} }

type unavailable struct{ err error }

func (u unavailable) Devices(context.Context) ([]Device, error) { return nil, u.err }

func (u unavailable) Find(context.Context, []string) ([]Device, error) { return nil, u.err }
