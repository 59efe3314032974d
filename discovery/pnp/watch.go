package pnp

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// timing is the intervals of [Source.Watch].
type timing struct {
	debounce time.Duration // from the first notification to the read
	blind    time.Duration // between reads without notifications
	settle   time.Duration // between reads after a notification: DXCore and the registry may lag
	settled  time.Duration // how long after a notification settle applies
	poll     time.Duration // between reads otherwise, for changes without notification
}

// Watch implements [discovery.Source]. Changes that Windows does not report, such as
// an edited list of runtime files, are found within half a minute.
//
// It calls changed at once if the list differs from the one that [Source.Devices]
// returned last, so that no change in between is lost.
func (s *Source) Watch(ctx context.Context, changed func()) error {
	ctx, cancel := context.WithCancel(ctx)
	var notifying sync.WaitGroup
	defer notifying.Wait()
	defer cancel()
	w := &watch{source: s, wake: make(chan struct{}, 1)}
	if st := s.state.Load(); st != nil {
		w.seen = st.generation
	}
	notifying.Go(func() { w.notify(ctx) })
	w.run(ctx, changed)
	return nil
}

// watch is one call of [Source.Watch].
type watch struct {
	source *Source
	// seen is the generation that the caller knows, 0 if it knows none.
	seen int
	// wake has an element after a notification, and when notifying has changed.
	wake chan struct{}
	// notifying reports whether Windows sends notifications.
	notifying atomic.Bool
}

func (w *watch) run(ctx context.Context, changed func()) {
	timing := w.source.timing
	w.check(ctx, changed)
	// Changes just before the registration had no notification.
	unsettled := time.Now().Add(timing.settled)
	interval := func() time.Duration {
		switch {
		case !w.notifying.Load():
			return timing.blind
		case time.Now().Before(unsettled):
			return timing.settle
		}
		return timing.poll
	}
	next := time.NewTimer(interval())
	defer next.Stop()
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
			unsettled = time.Now().Add(timing.settled)
			// Further notifications do not postpone the read: the installation of a
			// driver sends them for a long time.
			if due == nil {
				due = time.After(timing.debounce)
			}
			continue
		case <-due:
		case <-next.C:
		}
		due = nil
		w.check(ctx, changed)
		next.Reset(interval())
	}
}

// check reads the devices and calls changed if they have changed.
func (w *watch) check(ctx context.Context, changed func()) {
	st, err := w.source.read(ctx)
	if err != nil { // ctx has ended.
		return
	}
	if w.seen != st.generation {
		changed()
	}
	w.seen = st.generation
}

// notify stays registered for Windows' notifications until ctx ends.
func (w *watch) notify(ctx context.Context) {
	for warned := false; ; warned = true {
		w.notifying.Store(true)
		err := w.source.system.Notify(ctx, w.signal)
		w.notifying.Store(false)
		if ctx.Err() != nil {
			return
		}
		w.signal()
		log := w.source.log
		if err != nil {
			log = log.WithError(err)
		}
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			log.Info("This Windows does not report changes of GPUs; polling twice a second")
			return
		case !warned:
			log.Warn("Device notifications ended unexpectedly; polling twice a second until they resume")
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(w.source.timing.poll):
		}
	}
}

func (w *watch) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}
