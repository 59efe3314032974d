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

// Intervals of [Live.Watch].
const (
	// debounceTime is the time from the first notification to the read. Further notifications
	// do not postpone it: the installation of a driver sends them for a long time.
	debounceTime = 200 * time.Millisecond
	// settlingInterval is the interval of reads for settlingTime after a notification: DXCore,
	// the registry and the host of a VM can lag behind it.
	settlingInterval, settlingTime = time.Second, 10 * time.Second
	// pollInterval is the interval of reads otherwise, for changes without a notification, and
	// retryInterval the one without notifications, or after a read that failed.
	pollInterval, retryInterval = 30 * time.Second, 2 * time.Second
	// stopTimeout is how long a read that is running when ctx ends is waited for.
	stopTimeout = time.Second
)

// Live is the part of a [Source] that sources of the system's own GPUs share: the list in
// force, its changes, and the log of them. Create it with [NewLive].
type Live struct {
	log    logrus.FieldLogger
	list   func(ctx context.Context) ([]Device, error)
	notify func(ctx context.Context, changed func()) error

	state atomic.Pointer[state]
	// reading is a mutex whose Lock can be canceled.
	reading chan struct{}
	failure errlog.Last // of the last read
}

// state is the result of all reads so far. It is immutable.
type state struct {
	devices []Device
	// generation counts the changes of devices; 0 if there never was a list.
	generation int
	// err is the error of the last read.
	err error
}

// NewLive returns a source without Find.
//
// list reads the devices and is not called concurrently. It need not end with its
// context. With an error, the devices that it returns, unless nil, replace the last list.
// notify calls changed after each event that may concern a GPU, until ctx ends or with an
// error. A nil log discards.
func NewLive(log logrus.FieldLogger, list func(ctx context.Context) ([]Device, error), notify func(ctx context.Context, changed func()) error) *Live {
	if log == nil {
		discard := logrus.New()
		discard.SetOutput(io.Discard)
		log = discard
	}
	l := &Live{log: log, list: list, notify: notify, reading: make(chan struct{}, 1)}
	l.state.Store(&state{})
	return l
}

// Devices implements [Source]. It reads everything at each call.
func (l *Live) Devices(ctx context.Context) ([]Device, error) {
	st, err := l.read(ctx)
	if err != nil {
		return nil, err
	}
	if st.generation == 0 {
		return nil, st.err
	}
	return slices.Clone(st.devices), nil
}

// Find implements [Source]. It costs as much as the list.
func (l *Live) Find(ctx context.Context, instanceIDs []string) ([]Device, error) {
	devices, err := l.Devices(ctx)
	return WithIDs(devices, instanceIDs), err
}

// At implements [Source].
func (l *Live) At(ctx context.Context, index int) (Device, bool, error) {
	devices, err := l.Devices(ctx)
	return at(devices, index, err)
}

// read reads the devices and returns the new state. Its error is that of ctx, which does
// not interrupt the read: drivers can hang.
func (l *Live) read(ctx context.Context) (*state, error) {
	done := make(chan *state, 1)
	if ctx.Err() == nil { // Otherwise select may choose to read.
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
	case st := <-done:
		return st, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("find GPUs: %w", context.Cause(ctx))
	}
}

// update makes a list, or the error of one, the state.
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
	l.failure.Log(l.log, next.err, "Failed to read the GPUs", "GPUs can be read again")
	l.logChanges(old.devices, next.devices)
	l.state.Store(&next)
	return &next
}

func (l *Live) logChanges(before, now []Device) {
	for _, d := range now {
		was, known := Find(before, d.InstanceID)
		if known && reflect.DeepEqual(was, d) {
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

// Watch implements [Source]. Changes without a notification, such as an edited list of
// runtime files, are found within half a minute.
//
// It calls changed at once if the list differs from the one that [Live.Devices] returned
// last, so that no change in between is lost.
func (l *Live) Watch(ctx context.Context, changed func()) error {
	ctx, cancel := context.WithCancel(ctx)
	var notifying sync.WaitGroup
	defer l.waitRead()
	defer notifying.Wait()
	defer cancel()
	var notified atomic.Bool
	wake := make(chan struct{}, 1)
	notifying.Go(func() { l.keepNotified(ctx, &notified, wake) })

	seen := l.state.Load().generation
	// Changes just before the registration had no notification.
	settlingUntil := time.Now().Add(settlingTime)
	for {
		st, err := l.read(ctx)
		if err != nil {
			return nil //nolint:nilerr // ctx has ended.
		}
		if seen != st.generation {
			seen = st.generation
			changed()
		}
		interval := pollInterval
		switch {
		case !notified.Load() || st.err != nil:
			interval = retryInterval
		case time.Now().Before(settlingUntil):
			interval = settlingInterval
		}
		if last := waitNotified(ctx, wake, interval); !last.IsZero() {
			settlingUntil = last.Add(settlingTime)
		}
	}
}

// waitNotified waits for the interval, for debounceTime after a notification, or for the end of
// ctx. It returns the time of the last notification, zero if there was none.
func waitNotified(ctx context.Context, notified <-chan struct{}, interval time.Duration) (last time.Time) {
	next := time.After(interval)
	var debounced <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return last
		case <-notified:
			last = time.Now()
			if debounced == nil {
				debounced = time.After(debounceTime)
			}
		case <-debounced:
			return last
		case <-next:
			return last
		}
	}
}

// waitRead waits for the read that is running, so that a program that ends has closed what
// it opened, unless the driver hangs.
func (l *Live) waitRead() {
	select {
	case l.reading <- struct{}{}:
		<-l.reading
	case <-time.After(stopTimeout):
	}
}

// keepNotified stays registered for notifications until ctx ends. wake has an element
// after each, and after notified has changed to false.
func (l *Live) keepNotified(ctx context.Context, notified *atomic.Bool, wake chan struct{}) {
	signal := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	for warned := false; ctx.Err() == nil; warned = true {
		notified.Store(true)
		err := l.notify(ctx, signal)
		notified.Store(false)
		signal()
		if !warned && ctx.Err() == nil {
			l.log.WithError(err).Warn("The system does not report changes of GPUs; polling every two seconds until it does")
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollInterval):
		}
	}
}
