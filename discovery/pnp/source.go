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
	*discovery.Live
	system System
}

var _ discovery.Source = (*Source)(nil)

// Open returns a source of the devices of system (see [Devices]). It reads nothing yet.
func Open(system System, log logrus.FieldLogger) *Source {
	list := func(ctx context.Context) ([]discovery.Device, error) {
		snapshot, err := system.Snapshot(ctx)
		if err != nil {
			return nil, err
		}
		return Devices(snapshot), nil
	}
	return &Source{discovery.NewLive(log, list, system.Notify), system}
}

var errNotQueried = errors.New("DXCore was not queried")

// Find implements [discovery.Source]. It reads these devices only and nothing from
// DXCore, so that compute support, memory, and whether a device is integrated or
// detachable are unknown. If only DXCore can report whether a device works, it
// reads everything.
func (s *Source) Find(ctx context.Context, instanceIDs []string) ([]discovery.Device, error) {
	list, err := s.system.Find(ctx, instanceIDs)
	if err != nil {
		return nil, fmt.Errorf("find GPUs: %w", err)
	}
	if !slices.ContainsFunc(list, needsDXCore) {
		return Devices(Snapshot{Devices: list, DXCoreErr: errNotQueried}), nil
	}
	snapshot, err := s.system.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("find GPUs: %w", err)
	}
	return discovery.WithIDs(Devices(snapshot), instanceIDs), nil
}

// needsDXCore reports whether p has started but lacks what a Direct3D driver
// provides.
func needsDXCore(p Properties) bool {
	return pnpProblem(p) == "" && (p.LUID == nil || len(userModeFiles(p.Values)) == 0)
}
