package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/errlog"
)

// Why a container cannot have a device.
var (
	ErrUnknown  = errors.New("the GPUs of this node are unknown")
	ErrGone     = errors.New("it is no longer on this node")
	ErrUnusable = errors.New("it cannot be used")
)

const restoreGPU = "restore the GPU, or delete the pod so that its replacement gets another one"

// CheckUsable returns why d cannot be given to a container, nil if it can.
func (d Device) CheckUsable() error {
	switch {
	case !d.Health.OK():
		return fmt.Errorf("%w: %s", ErrUnusable, d.Health)
	case d.Software:
		return fmt.Errorf("%w: software renderer", ErrUnusable)
	case d.Kind() == KindNone:
		return fmt.Errorf("%w: it supports neither graphics nor compute", ErrUnusable)
	}
	return nil
}

// Allocated returns the devices of replicas, without duplicates. It is an error if one of them
// does not exist or cannot be used.
func Allocated(ctx context.Context, source Source, replicas []allocation.Replica) ([]Device, error) {
	uuids := map[string]string{} // by normalized instance ID
	var ids []string
	for _, replica := range replicas {
		id := NormalizeID(replica.InstanceID)
		if _, known := uuids[id]; !known {
			ids = append(ids, replica.InstanceID)
		}
		uuids[id] = cmp.Or(uuids[id], replica.UUID)
	}
	present, err := source.Devices(ctx, ids...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	var devices []Device
	for _, id := range ids {
		device, ok := Find(present, id)
		if !ok {
			return nil, errlog.WithRemedy(fmt.Errorf("GPU %s was allocated, but %w", id, ErrGone), restoreGPU)
		}
		if err := device.CheckUsable(); err != nil {
			return nil, errlog.WithRemedy(fmt.Errorf("GPU %s (%s) was allocated, but %w", device.Name(), id, err), restoreGPU)
		}
		device.UUID = cmp.Or(device.UUID, uuids[NormalizeID(id)]) // With IDs, Source.Devices does not query UUIDs.
		devices = append(devices, device)
	}
	return devices, nil
}
