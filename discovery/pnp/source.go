package pnp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"directx-nri/discovery"
	"directx-nri/discovery/history"
)

// Source lists the devices of a Windows node. Make one with [Open].
type Source struct {
	system System
	log    logrus.FieldLogger
	timing timing

	// state is what was read last, nil before the first look. It is replaced and
	// never changed, so reading it takes no lock.
	state atomic.Pointer[history.List]
	// reading holds one token: who has it asks Windows, so that an older answer
	// never comes in place of a newer one.
	reading chan struct{}
}

var _ discovery.Source = (*Source)(nil)

// Open returns a source of the devices that system knows. It asks nothing yet.
func Open(system System, log logrus.FieldLogger) *Source {
	return &Source{system: system, log: log, timing: defaultTiming(), reading: make(chan struct{}, 1)}
}

func defaultTiming() timing {
	return timing{
		debounce: 100 * time.Millisecond, blind: 500 * time.Millisecond, settle: time.Second,
		settled: 10 * time.Second, poll: 30 * time.Second,
	}
}

// Devices returns the devices that the node has now: see [Devices]. It asks
// Windows each time, for what takes milliseconds at 64 devices.
//
// When Windows does not answer, the list is the last good one, and the log says
// why. It is an error if there never was one, or when ctx ended first.
func (s *Source) Devices(ctx context.Context) ([]discovery.Device, error) {
	st, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	return st.Answer()
}

var errNotAsked = errors.New("DXCore was not asked")

// Find implements [discovery.Source]: it asks Windows for just these devices, and
// DXCore for nothing. Each call reads anew and keeps nothing, so it cannot answer
// from what is no longer so.
//
// What it does not know is what DXCore alone says: whether a device is integrated
// or detachable, its memory, and whether it supports compute. Where a device that
// runs looks as if DXCore did not know it, everything is asked, as for
// [Source.Devices].
func (s *Source) Find(ctx context.Context, instanceIDs []string) ([]discovery.Device, error) {
	raws, err := s.system.Find(ctx, instanceIDs)
	if err != nil {
		return nil, fmt.Errorf("find GPUs: %w", err)
	}
	if !slices.ContainsFunc(raws, doubtful) {
		return Devices(Snapshot{Devices: raws, DXCoreErr: errNotAsked}), nil
	}
	snapshot, err := s.system.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("find GPUs: %w", err)
	}
	return slices.DeleteFunc(Devices(snapshot), func(d discovery.Device) bool {
		return !slices.ContainsFunc(instanceIDs, func(id string) bool { return strings.EqualFold(id, d.InstanceID) })
	}), nil
}

// doubtful tells that only DXCore can say whether raw is a GPU that works: it
// runs, and it lacks what a driver for Direct3D brings.
func doubtful(raw Raw) bool {
	return unable(raw) == "" && (raw.LUID == nil || !hasUserModeDriver(raw.Values))
}

// look asks for the devices now and returns the state that this leads to. The
// error is that of ctx.
func (s *Source) look(ctx context.Context) (*history.List, error) {
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	case <-ctx.Done():
		return nil, fmt.Errorf("find GPUs: %w", context.Cause(ctx))
	}
	old := s.state.Load()
	snapshot, err := s.system.Snapshot(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("find GPUs: %w", context.Cause(ctx))
	}
	var devices []discovery.Device
	if err != nil {
		err = fmt.Errorf("find GPUs: %w", err)
	} else {
		devices = Devices(snapshot)
	}
	next := old.Next(devices, err)
	s.tell(old, &next)
	s.state.Store(&next)
	return &next, nil
}
