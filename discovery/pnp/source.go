package pnp

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/directx-nri/directx-nri/discovery"
)

// Source lists the devices of a Windows node. Create it with [Open].
type Source struct {
	*discovery.DriverSource
	read readFunc
}

var _ discovery.Source = (*Source)(nil)

// readFunc reads the present devices with a wanted instance ID, and the adapters. Without DXCore, it does not
// query those. A device that cannot be read does not hide others.
type readFunc func(ctx context.Context, wanted func(instanceID string) bool, withDXCore bool) (Snapshot, error)

// errNotQueried is [Snapshot].DXCoreErr without a query.
var errNotQueried = errors.New("it was not queried")

func newSource(read readFunc) *Source {
	return &Source{discovery.NewDriverSource(func(ctx context.Context) ([]discovery.Device, error) {
		snapshot, err := read(ctx, isAny, true)
		return Devices(snapshot), err
	}), read}
}

func isAny(string) bool { return true }

// Devices implements [discovery.Source]. With instance IDs, it reads these devices only, and does not query DXCore. So
// compute support, memory, and whether a device is integrated or detachable are unknown. It reads
// everything if only DXCore can report whether one of the devices works.
func (s *Source) Devices(ctx context.Context, instanceIDs ...string) ([]discovery.Device, error) {
	if len(instanceIDs) == 0 {
		return s.DriverSource.Devices(ctx)
	}
	wanted := func(instanceID string) bool {
		isSame := func(id string) bool { return discovery.NormalizeID(id) == discovery.NormalizeID(instanceID) }
		return slices.ContainsFunc(instanceIDs, isSame)
	}
	devices, err := s.Await(ctx, func(ctx context.Context) ([]discovery.Device, error) {
		snapshot, err := s.read(ctx, wanted, false)
		if err == nil && slices.ContainsFunc(snapshot.Devices, needsDXCore) {
			snapshot, err = s.read(ctx, isAny, true)
		}
		return Devices(snapshot), err
	})
	if err != nil {
		return nil, fmt.Errorf("find GPUs: %w", err)
	}
	return devices, nil
}

// needsDXCore reports whether only DXCore can report that a started device works, because it has no LUID,
// user-mode driver or location path.
func needsDXCore(p Properties) bool {
	return whyNotStarted(p) == "" && (p.LUID == 0 || len(userModeFiles(p.Values)) == 0 || len(p.LocationPaths) == 0)
}
