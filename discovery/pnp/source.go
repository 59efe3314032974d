package pnp

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/discovery"
)

// Source lists the devices of a Windows node. Create it with [Open].
type Source struct {
	*discovery.DriverSource
	system System
}

var _ discovery.Source = (*Source)(nil)

// Open returns a source of the devices of system (see [Devices]). It reads nothing yet.
func Open(system System, log logrus.FieldLogger) *Source {
	list := func(ctx context.Context) ([]discovery.Device, error) {
		snapshot, err := system.Snapshot(ctx)
		return Devices(snapshot), err
	}
	return &Source{discovery.NewDriverSource(log, list), system}
}

// Find implements [discovery.Source]. It reads devices with these instance IDs only, and does not query DXCore. So
// compute support, memory, and whether a device is integrated or detachable are unknown. It reads
// everything if only DXCore can report whether one of the devices works.
func (s *Source) Find(ctx context.Context, instanceIDs []string) ([]discovery.Device, error) {
	devices, err := s.Await(ctx, func(ctx context.Context) ([]discovery.Device, error) {
		list, err := s.system.Find(ctx, instanceIDs)
		if err != nil || !slices.ContainsFunc(list, needsDXCore) {
			return Devices(Snapshot{Devices: list, DXCoreErr: errors.New("it was not queried")}), err
		}
		snapshot, err := s.system.Snapshot(ctx)
		return discovery.WithIDs(Devices(snapshot), instanceIDs), err
	})
	if err != nil {
		return nil, fmt.Errorf("find GPUs: %w", err)
	}
	return devices, nil
}

// needsDXCore reports whether only DXCore can report that a started device works, because it has no LUID,
// user-mode driver or location path.
func needsDXCore(p Properties) bool {
	return pnpProblem(p) == "" && (p.LUID == 0 || len(userModeFiles(p.Values)) == 0 || len(p.LocationPaths) == 0)
}
