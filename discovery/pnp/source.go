package pnp

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"directx-nri/discovery"
)

// Source lists the devices of a Windows node. Create it with [Open].
type Source struct {
	system System
	log    logrus.FieldLogger
	timing timing

	// state is immutable, nil before the first read.
	state atomic.Pointer[state]
	// reading is a mutex whose Lock can be canceled.
	reading chan struct{}
}

var _ discovery.Source = (*Source)(nil)

// state is the result of all reads so far.
type state struct {
	// devices is the last good list.
	devices []discovery.Device
	// generation counts the changes of devices; 0 if there never was a good list.
	generation int
	// err is the error of the last read.
	err error
}

// Open returns a source of the devices of system. It reads nothing yet.
func Open(system System, log logrus.FieldLogger) *Source {
	return &Source{system: system, log: log, timing: defaultTiming(), reading: make(chan struct{}, 1)}
}

func defaultTiming() timing {
	return timing{
		debounce: 100 * time.Millisecond, blind: 500 * time.Millisecond, settle: time.Second,
		settled: 10 * time.Second, poll: 30 * time.Second,
	}
}

// Devices implements [discovery.Source]: see the function [Devices]. It reads
// everything at each call, which takes milliseconds for 64 devices.
func (s *Source) Devices(ctx context.Context) ([]discovery.Device, error) {
	st, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	if st.generation == 0 {
		return nil, st.err
	}
	return discovery.Static(st.devices).Devices(ctx)
}

var errNotAsked = errors.New("DXCore was not asked")

// Find implements [discovery.Source]. It reads these devices only and nothing from
// DXCore, so that compute support, memory, and whether a device is integrated or
// detachable are unknown. If only DXCore can tell whether a device works, it reads
// everything.
func (s *Source) Find(ctx context.Context, instanceIDs []string) ([]discovery.Device, error) {
	raws, err := s.system.Find(ctx, instanceIDs)
	if err != nil {
		return nil, fmt.Errorf("find GPUs: %w", err)
	}
	if !slices.ContainsFunc(raws, needsDXCore) {
		return Devices(Snapshot{Devices: raws, DXCoreErr: errNotAsked}), nil
	}
	snapshot, err := s.system.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("find GPUs: %w", err)
	}
	return discovery.Select(Devices(snapshot), instanceIDs), nil
}

// needsDXCore reports whether raw has started but lacks what a Direct3D driver
// provides.
func needsDXCore(raw Raw) bool {
	return pnpProblem(raw) == "" && (raw.LUID == nil || !hasUserModeDriver(raw.Values))
}

// read reads the devices and returns the new state. Its error is that of ctx.
func (s *Source) read(ctx context.Context) (*state, error) {
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	case <-ctx.Done():
		return nil, fmt.Errorf("find GPUs: %w", context.Cause(ctx))
	}
	snapshot, err := s.system.Snapshot(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("find GPUs: %w", context.Cause(ctx))
	}
	old := s.state.Load()
	if old == nil {
		old = &state{}
	}
	next := *old
	if next.err = err; err != nil {
		next.err = fmt.Errorf("find GPUs: %w", err)
	} else if devices := Devices(snapshot); old.generation == 0 || !reflect.DeepEqual(old.devices, devices) {
		next.devices = devices
		next.generation++
	}
	s.logChanges(old, &next)
	s.state.Store(&next)
	return &next, nil
}
