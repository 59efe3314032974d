package discovery

import (
	"context"
	"slices"
)

// Source lists the GPUs of a node. It is safe for concurrent use, unless it is said where it is created.
type Source interface {
	// Devices returns the current devices in a stable order. The caller can change the slice. If the
	// driver fails or does not answer, Devices can return the last list, with all devices unhealthy.
	//
	// With instance IDs, a container gets these devices, and its start waits for the call. The source can
	// leave out all others, and properties that are not for containers, so that the kind can differ.
	Devices(ctx context.Context, instanceIDs ...string) ([]Device, error)
}

// Static is a [Source] whose devices never change.
type Static []Device

// Devices implements [Source].
func (s Static) Devices(context.Context, ...string) ([]Device, error) { return slices.Clone(s), nil }

// Unavailable returns a source whose calls fail with err.
func Unavailable(err error) Source { return unavailable{err} }

type unavailable struct{ err error }

func (u unavailable) Devices(context.Context, ...string) ([]Device, error) { return nil, u.err }
