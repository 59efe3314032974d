package discovery

import (
	"context"
	"fmt"
	"io"
	"reflect"
	"slices"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/internal/errlog"
)

// Live is a [Source] of the system's own GPUs, whose drivers can fail or hang. It keeps the last
// list, logs changes, and reads the GPUs in one goroutine at a time. Create it with [NewLive].
type Live struct {
	log  logrus.FieldLogger
	list func(ctx context.Context) ([]Device, error)

	// reading is the lock of the read. It has an element while it is held, so that waiting for it can
	// be canceled.
	reading chan struct{}
	// The following fields belong to the read: the last list, whether there is one, and the last
	// error.
	last    []Device
	hasList bool
	lastErr errlog.LastError
}

// NewLive returns a source of the devices that list returns. If log is nil, nothing is logged.
//
// list is not called concurrently, and may ignore its context. If it returns an error, the devices of
// the last list are unhealthy, because containers would not start with them.
func NewLive(log logrus.FieldLogger, list func(ctx context.Context) ([]Device, error)) *Live {
	if log == nil {
		discard := logrus.New()
		discard.SetOutput(io.Discard)
		log = discard
	}
	return &Live{log: log, list: list, reading: make(chan struct{}, 1)}
}

// listing is the result of a read.
type listing struct {
	devices []Device
	err     error
}

// Devices implements [Source]. Each call reads all devices. If ctx ends, it returns the cause and
// leaves the read running, because a driver that hangs cannot be interrupted.
func (l *Live) Devices(ctx context.Context) ([]Device, error) {
	done := make(chan listing, 1)
	if ctx.Err() == nil { // If ctx has ended, select could still choose to read.
		select {
		case l.reading <- struct{}{}:
			go func() {
				defer func() { <-l.reading }()
				devices, err := l.read(ctx)
				if err == nil || ctx.Err() == nil {
					done <- l.update(devices, err)
				}
			}()
		case <-ctx.Done():
		}
	}
	select {
	case result := <-done:
		return result.devices, result.err
	case <-ctx.Done():
		return nil, fmt.Errorf("find GPUs: %w", context.Cause(ctx))
	}
}

// read calls list. A panic, which a recovery of the caller would not see, is an error.
func (l *Live) read(ctx context.Context) (devices []Device, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = errlog.PanicError(l.log, cause)
		}
	}()
	return l.list(ctx)
}

// Find implements [Source]. It reads all devices.
func (l *Live) Find(ctx context.Context, instanceIDs []string) ([]Device, error) {
	devices, err := l.Devices(ctx)
	return WithIDs(devices, instanceIDs), err
}

// At implements [Source].
func (l *Live) At(ctx context.Context, index int) (Device, bool, error) {
	devices, err := l.Devices(ctx)
	return at(devices, index, err)
}

// update sets and logs the result of a read, and returns the new list.
func (l *Live) update(devices []Device, err error) listing {
	l.lastErr.Log(l.log, err, "Failed to read the GPUs", "GPUs can be read again")
	if err != nil {
		if !l.hasList {
			return listing{err: fmt.Errorf("find GPUs: %w", err)}
		}
		devices = slices.Clone(l.last)
		for i := range devices {
			devices[i].Health = Health{Reason: "the driver does not answer: " + errlog.OneLine(err.Error())}
		}
	}
	l.logChanges(l.last, devices)
	l.last, l.hasList = devices, true
	return listing{devices: slices.Clone(devices)}
}

func (l *Live) logChanges(before, now []Device) {
	for _, d := range now {
		old, known := Find(before, d.InstanceID)
		if known && reflect.DeepEqual(old, d) {
			continue
		}
		log := l.log.WithFields(logrus.Fields{
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
			l.log.WithFields(logrus.Fields{"gpu": d.Name(), "instanceID": d.InstanceID}).Info("GPU removed")
		}
	}
}
