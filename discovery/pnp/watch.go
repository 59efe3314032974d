package pnp

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"directx-nri/discovery/history"
)

// timing is what Watch waits for.
type timing struct {
	debounce time.Duration // from the first notification to the look
	blind    time.Duration // between looks where Windows does not notify
	settle   time.Duration // between looks after a notification: DXCore and the registry may follow later
	settled  time.Duration // how long after a notification that goes on
	poll     time.Duration // between looks otherwise, for what nobody notifies of
}

// Watch calls changed after each change of the list, until ctx ends; it then
// returns nil. Windows notifies of devices that come, go, start and stop. What it
// may not notify of, such as a driver's list of files that was edited, is
// found within half a minute. Where it does not notify at all, a look twice a
// second stands in.
//
// No change is missed between [Source.Devices] and Watch: when the list is
// another already than the one that was answered first, changed is called at
// once.
func (s *Source) Watch(ctx context.Context, changed func()) error {
	w := watch{source: s, changed: changed, told: history.Since(s.state.Load())}
	ctx, cancel := context.WithCancel(ctx)
	var notifying sync.WaitGroup
	defer notifying.Wait()
	defer cancel()
	n := &notifier{system: s.system, source: s, wake: make(chan struct{}, 1)}
	notifying.Go(func() { n.run(ctx) })
	w.run(ctx, n)
	return nil
}

// watch is one call of Watch.
type watch struct {
	source  *Source
	changed func()
	told    history.Told
}

func (w *watch) run(ctx context.Context, n *notifier) {
	timing := w.source.timing
	w.check(ctx)
	// A notification from before the registration had nobody to go to.
	unsettled := time.Now().Add(timing.settled)
	pause := func() time.Duration {
		switch {
		case !n.notified.Load():
			return timing.blind
		case time.Now().Before(unsettled):
			return timing.settle
		}
		return timing.poll
	}
	next := time.NewTimer(pause())
	defer next.Stop()
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
			unsettled = time.Now().Add(timing.settled)
			// Not put off by further notifications: a driver's installation sends
			// them for a long time.
			if due == nil {
				due = time.After(timing.debounce)
			}
			continue
		case <-due:
		case <-next.C:
		}
		due = nil
		w.check(ctx)
		next.Reset(pause())
	}
}

// check looks at the devices and tells of a change.
func (w *watch) check(ctx context.Context) {
	st, err := w.source.look(ctx)
	if err != nil { // ctx has ended, which the loop sees
		return
	}
	if w.told.News(st) {
		w.changed()
	}
}

// notifier stays registered for Windows' notifications.
type notifier struct {
	system System
	source *Source
	// wake has one element when Windows has notified since it was last emptied, or
	// when whether it notifies has changed.
	wake chan struct{}
	// notified tells whether Windows notifies now.
	notified atomic.Bool
}

func (n *notifier) run(ctx context.Context) {
	for warned := false; ; warned = true {
		n.notified.Store(true)
		err := n.system.Notify(ctx, n.signal)
		n.notified.Store(false)
		if ctx.Err() != nil {
			return
		}
		n.signal()
		log := n.source.log
		if err != nil {
			log = log.WithError(err)
		}
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			log.Info("this Windows does not tell of changes of its GPUs; they are looked at twice a second instead")
			return
		case !warned:
			log.Warn("Windows does not tell of changes of its GPUs; until it does they are looked at twice a second")
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(n.source.timing.poll):
		}
	}
}

func (n *notifier) signal() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}
