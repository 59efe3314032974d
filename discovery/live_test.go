package discovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	logtest "github.com/sirupsen/logrus/hooks/test"
)

// fakeGPUs is a system whose GPUs change at once.
type fakeGPUs struct {
	mu      sync.Mutex
	devices []Device
	err     error
	reads   int
	changed func()
	// broken ends the notifications with an error.
	broken chan error
}

func newFake(n int) *fakeGPUs {
	f := &fakeGPUs{broken: make(chan error)}
	f.plug(n)
	return f
}

func (f *fakeGPUs) plug(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devices = nil
	for i := range n {
		f.devices = append(f.devices, Device{InstanceID: fmt.Sprint(i), SupportsDisplay: true})
	}
}

func (f *fakeGPUs) list(context.Context) ([]Device, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	return slices.Clone(f.devices), f.err
}

// update changes the driver of the first GPU and notifies.
func (f *fakeGPUs) update(version string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devices[0].DriverVersion = version
	f.changed()
}

func (f *fakeGPUs) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reads
}

func (f *fakeGPUs) watchEvents(ctx context.Context, changed func()) error {
	f.mu.Lock()
	f.changed = changed
	f.mu.Unlock()
	select {
	case <-ctx.Done():
		time.Sleep(time.Minute)
		return nil
	case err := <-f.broken:
		return err
	}
}

func TestLiveDevices(t *testing.T) {
	t.Parallel()
	f := newFake(2)
	log, hook := logtest.NewNullLogger()
	l := NewLive(log, f.list, f.watchEvents)
	failed := errors.New("access is denied")
	broken := []Device{{InstanceID: "0", SupportsDisplay: true, Health: Health{Reason: "broken"}}}
	for _, step := range []struct {
		name    string
		devices []Device
		err     error
		want    int // devices, -1 for an error
		logged  []string
	}{
		{"no list", nil, failed, -1, []string{"error Failed to read the GPUs"}},
		{"no list again", nil, failed, -1, nil},
		{"first list", f.devices, nil, 2, []string{"info GPUs can be read again", "info GPU found", "info GPU found"}},
		{"same list", f.devices, nil, 2, nil},
		{"the last list stays", nil, failed, 2, []string{"error Failed to read the GPUs"}},
		{"another list with an error", broken, failed, 1, []string{"warning GPU is unhealthy", "info GPU removed"}},
		{"recovery", f.devices[:1], nil, 1, []string{"info GPUs can be read again", "info GPU changed"}},
		{"no GPU", nil, nil, 0, []string{"info GPU removed"}},
	} {
		hook.Reset()
		f.devices, f.err = step.devices, step.err
		devices, err := l.Devices(t.Context())
		if (err != nil) != (step.want < 0) || err == nil && len(devices) != step.want || err != nil && !strings.Contains(err.Error(), "find GPUs: access is denied") {
			t.Errorf("%s: %v, %v", step.name, devices, err)
		}
		var logged []string
		for _, entry := range hook.AllEntries() {
			logged = append(logged, entry.Level.String()+" "+entry.Message)
		}
		if diff := cmp.Diff(step.logged, logged); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}

// A driver that hangs does not hang the caller.
func TestLiveCanceled(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	l := NewLive(nil, func(context.Context) ([]Device, error) { <-release; return nil, nil }, nil)
	for range 2 { // The first one hangs in the driver, the second waits for it.
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, errors.New("the cause"))
		defer cancel()
		if _, err := l.Devices(ctx); err == nil || !strings.Contains(err.Error(), "the cause") {
			t.Error(err)
		}
	}
}

// watched runs test in a bubble while Watch runs.
func watched(t *testing.T, test func(f *fakeGPUs, changes *atomic.Int64)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(2)
		log, _ := logtest.NewNullLogger()
		l := NewLive(log, f.list, f.watchEvents)
		if _, err := l.Devices(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.plug(3) // before Watch
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		var changes atomic.Int64
		go func() { done <- l.Watch(ctx, func() { changes.Add(1) }) }()
		pause(time.Minute)
		if n := changes.Swap(0); n != 1 {
			t.Errorf("%d changes at the start, want 1", n)
		}
		test(f, &changes)
		cancel()
		start := time.Now()
		if err := <-done; err != nil || time.Since(start) != time.Minute {
			t.Errorf("%v, %s after the end, before the notifications ended", err, time.Since(start))
		}
	})
}

func pause(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestWatchNotifications(t *testing.T) {
	watched(t, func(f *fakeGPUs, changes *atomic.Int64) {
		before := f.count()
		for n := range 100 { // as the installation of a driver does
			f.update(fmt.Sprint("1.0.0.", n))
			time.Sleep(debounceTime / 50)
		}
		pause(debounceTime)
		if n := f.count() - before; n < 2 || n > 3 || changes.Swap(0) != int64(n) {
			t.Errorf("%d reads", n)
		}
		f.plug(2) // DXCore, the registry and the host can lag behind the notification.
		pause(fastInterval)
		if n := changes.Swap(0); n != 1 {
			t.Errorf("%d changes after the notification", n)
		}
		pause(time.Minute)
		f.plug(1)
		pause(slowInterval)
		if n := changes.Swap(0); n != 1 {
			t.Errorf("%d changes without a notification", n)
		}
	})
}

func TestWatchPollsWhenNotificationsEnd(t *testing.T) {
	watched(t, func(f *fakeGPUs, changes *atomic.Int64) {
		for n := range 2 {
			f.broken <- errors.New("invalid handle")
			pause(debounceTime)
			f.plug(n)
			pause(fastInterval)
			if got := changes.Swap(0); got != 1 {
				t.Errorf("%d changes", got)
			}
			pause(slowInterval + settlingTime)
			before := f.count()
			pause(slowInterval)
			if reads := f.count() - before; reads != 1 {
				t.Errorf("%d reads although there are notifications again", reads)
			}
		}
	})
}

// A read that fails is soon repeated.
func TestWatchBeforeFirstList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(2)
		f.err, f.devices = errors.New("failed"), nil
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		var changes []time.Duration
		start := time.Now()
		time.AfterFunc(time.Minute, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.err = nil
		})
		err := NewLive(nil, f.list, f.watchEvents).Watch(ctx, func() { changes = append(changes, time.Since(start)) })
		if err != nil || len(changes) != 1 || changes[0] < time.Minute || changes[0] > time.Minute+fastInterval {
			t.Errorf("changes after %v, %v", changes, err)
		}
	})
}

// A program ends when its reads have ended, or their driver hangs.
func TestWatchWaitsForRead(t *testing.T) {
	t.Parallel()
	for read, want := range map[time.Duration]time.Duration{stopTimeout / 2: stopTimeout / 2, time.Hour: stopTimeout} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			f := newFake(1)
			list := func(ctx context.Context) ([]Device, error) {
				cancel()
				time.Sleep(read)
				return f.list(ctx)
			}
			start := time.Now()
			err := NewLive(nil, list, func(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }).Watch(ctx, func() {})
			if took := time.Since(start); err != nil || took != want {
				t.Errorf("a read of %s: %v after %s, want %s", read, err, took, want)
			}
			time.Sleep(read)
		})
	}
}
