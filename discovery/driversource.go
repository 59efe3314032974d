package discovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/internal/errlog"
)

// DriverSource is a [Source] of the system's own GPUs, whose drivers can fail or hang. It keeps the
// last list, logs changes, and lists the GPUs in one goroutine at a time. Use [NewDriverSource].
type DriverSource struct {
	log  logrus.FieldLogger
	list func(ctx context.Context) ([]Device, error)

	// reading is the lock of a read of all devices. It has an element while it is held, so that
	// waiting for it can be canceled.
	reading chan struct{}

	mu sync.Mutex // guards the following fields
	// last is the last list, and hasList whether there is one.
	last    []Device
	hasList bool
	lastErr errlog.LastError
}

// answerTimeout is how long the driver may take to answer. A read takes up to seconds while the
// system starts.
const answerTimeout = 20 * time.Second

// ErrNoAnswer means that a driver hangs.
var ErrNoAnswer = fmt.Errorf("no answer within %s", answerTimeout)

// NewDriverSource returns a source of the devices that list returns. If log is nil, nothing is logged.
//
// list is not called concurrently, and may ignore its context. If it returns an error or does not
// answer in time, the devices of the last list are unhealthy, because containers would not start with
// them.
func NewDriverSource(log logrus.FieldLogger, list func(ctx context.Context) ([]Device, error)) *DriverSource {
	if log == nil {
		log = errlog.NewLogger(io.Discard)
	}
	return &DriverSource{log: log, list: list, reading: make(chan struct{}, 1)}
}

// Devices implements [Source]. Each call reads all devices.
func (s *DriverSource) Devices(ctx context.Context) ([]Device, error) {
	devices, err := s.Await(ctx, func(ctx context.Context) ([]Device, error) {
		select {
		case s.reading <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		defer func() { <-s.reading }()
		devices, err := s.list(ctx)
		if err != nil && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return s.update(devices, err)
	})
	if errors.Is(err, ErrNoAnswer) || errors.Is(err, errlog.ErrInternal) {
		devices, err = s.update(nil, err)
	}
	if err != nil {
		return nil, fmt.Errorf("find GPUs: %w", err)
	}
	return devices, nil
}

// Await returns the result of query, which asks the driver. If ctx ends or the driver does not answer
// in time, it returns the cause and leaves query running, because a driver that hangs cannot be
// interrupted. A panic of query is an error: it is in another goroutine, in which the caller cannot
// recover it.
func (s *DriverSource) Await(ctx context.Context, query func(context.Context) ([]Device, error)) ([]Device, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, ErrNoAnswer)
	defer cancel()
	if ctx.Err() != nil { // Otherwise, select could still choose a result.
		return nil, context.Cause(ctx)
	}
	type result struct {
		devices []Device
		err     error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		defer func() {
			if cause := recover(); cause != nil {
				r.err = errlog.PanicError(s.log, cause)
			}
			done <- r
		}()
		r.devices, r.err = query(ctx)
	}()
	select {
	case r := <-done:
		return r.devices, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Find implements [Source]. It reads all devices.
func (s *DriverSource) Find(ctx context.Context, instanceIDs []string) ([]Device, error) {
	devices, err := s.Devices(ctx)
	return WithIDs(devices, instanceIDs), err
}

// update sets and logs the result of a read, and returns the new list.
func (s *DriverSource) update(devices []Device, err error) ([]Device, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastErr.Log(s.log, err, "Failed to read the GPUs", "GPUs can be read again")
	if err != nil {
		if !s.hasList {
			return nil, err
		}
		devices = slices.Clone(s.last)
		for i := range devices {
			devices[i].Health = Health{Reason: "the driver does not answer: " + errlog.ErrorLine(err)}
		}
	}
	s.logChanges(s.last, devices)
	s.last, s.hasList = devices, true
	return slices.Clone(devices), nil
}

func (s *DriverSource) logChanges(before, now []Device) {
	for _, d := range now {
		old, known := Find(before, d.InstanceID)
		if known && reflect.DeepEqual(old, d) {
			continue
		}
		log := s.log.WithFields(logrus.Fields{
			"gpu": d.Name(), "instanceID": d.InstanceID, "description": d.Description, "kind": d.Kind(), "driver": d.DriverVersion,
			"health": d.Health.String(), "notes": d.Notes,
		})
		switch {
		case !d.Health.OK() && d.Kind() != KindNone:
			log.Warn("GPU is unhealthy")
		case known:
			log.Info("GPU changed")
		default:
			log.Info("GPU found")
		}
	}
	for _, d := range before {
		if _, present := Find(now, d.InstanceID); !present {
			s.log.WithFields(logrus.Fields{"gpu": d.Name(), "instanceID": d.InstanceID}).Info("GPU removed")
		}
	}
}
