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

	// Find returns the present devices that selector selects, in any order, with their health and
	// everything that a container is given. It reads them at each call, which can take less time than
	// Devices. It can know less of a device than Devices, so the kind can differ.
	Find(ctx context.Context, selector Selector) ([]Device, error)
}

// Selector selects devices. The zero value selects none.
type Selector struct {
	// InstanceIDs are the instance IDs of devices.
	InstanceIDs []string
	// Index is the index of a device in the list of [Source.Devices], nil for none.
	Index *int
}

// Selects reports whether s selects the device with this index and instance ID.
func (s Selector) Selects(index int, instanceID string) bool {
	return s.Index != nil && *s.Index == index || ContainsID(s.InstanceIDs, instanceID)
}

// From returns the elements of devices, the list of [Source.Devices], that s selects.
func (s Selector) From(devices []Device) (selected []Device) {
	for i, d := range devices {
		if s.Selects(i, d.InstanceID) {
			selected = append(selected, d)
		}
	}
	return selected
}

// Static is a [Source] whose devices never change.
type Static []Device

// Devices implements [Source].
func (s Static) Devices(context.Context) ([]Device, error) { return slices.Clone(s), nil }

// Find implements [Source].
func (s Static) Find(_ context.Context, selector Selector) ([]Device, error) {
	return selector.From(s), nil
}

// Unavailable returns a source whose calls fail with err.
func Unavailable(err error) Source { return unavailable{err} }

type unavailable struct{ err error }

func (u unavailable) Devices(context.Context) ([]Device, error) { return nil, u.err }

func (u unavailable) Find(context.Context, Selector) ([]Device, error) { return nil, u.err }
