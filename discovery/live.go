package discovery

import (
	"context"
	"fmt"
	"io"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/internal/errlog"
)

const (
	// debounceTime is the time from the first event to the read. Further events do not postpone it: the installation of a driver causes them for a long time.
	debounceTime = 200 * time.Millisecond
	// fastInterval is the interval of reads for settlingTime after an event, because DXCore, the
	// registry and the host of a VM can change later. It is also the interval while the system
	// reports no events, and after a read that failed.
	fastInterval, settlingTime = time.Second, 10 * time.Second
	// slowInterval is the interval of reads otherwise, for changes without an event. It is also the
	// time after which watching events is retried if it failed.
	slowInterval = 30 * time.Second
	// stopTimeout is how long Watch waits at its end for a read that is running.
	stopTimeout = time.Second
)

// Live is a [Source] of the system's own GPUs, whose drivers can fail or hang. It keeps the last
// list, reports and logs changes, and reads the GPUs in one goroutine at a time. Create it with
// [NewLive].
type Live struct {
	log         logrus.FieldLogger
	list        func(ctx context.Context) ([]Device, error)
	watchEvents func(ctx context.Context, changed func()) error

	state atomic.Pointer[state]
	// reading has an element during a read. Unlike the lock of a mutex, sending can be canceled.
	reading chan struct{}
	lastErr errlog.LastError // of a read
}

// state is the result of all reads so far. It is immutable.
type state struct {
	devices []Device
	// generation counts the changes of devices; 0 if there never was a list.
	generation int
	// err is the error of the last read.
	err error
}

// NewLive returns a source of the devices that list returns. If log is nil, nothing is logged.
//
// list is not called concurrently, and may ignore its context. If it returns an error and
// devices, they replace the last list. watchEvents calls changed after each event that may concern a
// GPU. It returns when ctx ends or, with an error, when it cannot receive events any longer.
func NewLive(log logrus.FieldLogger, list func(ctx context.Context) ([]Device, error), watchEvents func(ctx context.Context, changed func()) error) *Live {
	if log == nil {
		discard := logrus.New()
		discard.SetOutput(io.Discard)
		log = discard
	}
	l := &Live{log: log, list: list, watchEvents: watchEvents, reading: make(chan struct{}, 1)}
	l.state.Store(&state{})
	return l
}

// Devices implements [Source]. Each call reads all devices.
func (l *Live) Devices(ctx context.Context) ([]Device, error) {
	current, err := l.read(ctx)
	if err != nil {
		return nil, err
	}
	if current.generation == 0 {
		return nil, current.err
	}
	return slices.Clone(current.devices), nil
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

// read reads the devices and returns the new state. If ctx ends, it returns the cause and leaves
// the read running, because a driver that hangs cannot be interrupted.
func (l *Live) read(ctx context.Context) (*state, error) {
	done := make(chan *state, 1)
	if ctx.Err() == nil { // If ctx has ended, select could still choose to read.
		select {
		case l.reading <- struct{}{}:
			go func() {
				defer func() { <-l.reading }()
				devices, err := l.list(ctx)
				if err == nil || ctx.Err() == nil {
					done <- l.update(devices, err)
				}
			}()
		case <-ctx.Done():
		}
	}
	select {
	case current := <-done:
		return current, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("find GPUs: %w", context.Cause(ctx))
	}
}

// update sets and logs the result of a read, and returns the new state.
func (l *Live) update(devices []Device, err error) *state {
	old := l.state.Load()
	next := *old
	if next.err = err; err != nil {
		next.err = fmt.Errorf("find GPUs: %w", err)
	}
	if err == nil && old.generation == 0 || (err == nil || devices != nil) && !reflect.DeepEqual(old.devices, devices) {
		next.devices = devices
		next.generation++
	}
	l.lastErr.Log(l.log, next.err, "Failed to read the GPUs", "GPUs can be read again")
	l.logChanges(old.devices, next.devices)
	l.state.Store(&next)
	return &next
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

// Watch implements [Source]. It finds changes without an event, such as an edited list of
// runtime files, within half a minute. It begins with a read, so it reports a change since the last
// call of [Live.Devices] at once.
func (l *Live) Watch(ctx context.Context, changed func()) error {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer l.waitForRead()
	defer watching.Wait()
	defer cancel()
	events := make(chan struct{}, 1)
	watching.Go(func() { l.keepWatching(ctx, events) })
	settlingUntil := time.Now().Add(settlingTime) // Changes just before this had no event.
	for reported := l.state.Load().generation; ; {
		current, err := l.read(ctx)
		if err != nil {
			return nil //nolint:nilerr // ctx has ended.
		}
		if reported != current.generation {
			reported = current.generation
			changed()
		}
		interval := slowInterval
		if current.err != nil || time.Now().Before(settlingUntil) {
			interval = fastInterval
		}
		select {
		case <-ctx.Done():
		case <-time.After(interval):
		case <-events:
			sleep(ctx, debounceTime)
			select {
			case <-events: // The next read covers this one, too.
			default:
			}
			settlingUntil = time.Now().Add(settlingTime)
		}
	}
}

// keepWatching puts a value into events after each event, until ctx ends. While the system reports
// no events, it does so every second.
func (l *Live) keepWatching(ctx context.Context, events chan<- struct{}) {
	notify := func() {
		select {
		case events <- struct{}{}:
		default:
		}
	}
	for warned := false; ctx.Err() == nil; sleep(ctx, fastInterval) {
		err := l.watchEvents(ctx, notify)
		if !warned && ctx.Err() == nil {
			l.log.WithError(err).Warn("The system does not report changes of GPUs; reading the GPUs every second until it does")
		}
		warned = true
		notify()
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// waitForRead waits until the running read has ended and closed its files, at most for stopTimeout:
// the driver may hang.
func (l *Live) waitForRead() {
	select {
	case l.reading <- struct{}{}:
		<-l.reading
	case <-time.After(stopTimeout):
	}
}
