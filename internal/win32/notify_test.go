package win32

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"directx-nri/internal/testutil"
)

// event returns a CM_NOTIFY_EVENT_DATA.
func event(kind uint32, union []byte) []byte {
	data := binary.LittleEndian.AppendUint32(nil, kind)
	return append(append(data, 0, 0, 0, 0), union...) // Reserved.
}

func instance(name string) []byte { return event(notifyDeviceInstance, wide(name+"\x00")) }

func TestParseNotifyEvent(t *testing.T) {
	t.Parallel()
	display := []byte{0x80, 0x51, 0xa0, 0x1c, 0x99, 0xa6, 0x0a, 0x45, 0x9a, 0x0c, 0xde, 0x4f, 0xbe, 0x3d, 0xdd, 0x89}
	for name, test := range map[string]struct {
		data []byte
		want NotifyEvent
		ok   bool
	}{
		"interface":           {event(notifyDeviceInterface, append(display, wide(`\\?\PCI#VEN_10DE`+"\x00")...)), NotifyEvent{DisplayInterface(), `\\?\PCI#VEN_10DE`}, true},
		"instance":            {instance(`PCI\VEN_10DE`), NotifyEvent{Name: `PCI\VEN_10DE`}, true},
		"without terminator":  {event(notifyDeviceInstance, append(wide(`PCI`), 0)), NotifyEvent{Name: `PCI`}, true},
		"truncated interface": {event(notifyDeviceInterface, display[:15]), NotifyEvent{}, false},
		"truncated":           {make([]byte, 7), NotifyEvent{}, false},
		"empty":               {nil, NotifyEvent{}, false},
		"handle":              {event(1, make([]byte, 28)), NotifyEvent{}, false},
	} {
		got, err := parseNotifyEvent(test.data)
		if got != test.want || (err == nil) != test.ok {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, test.want)
		}
	}
}

func FuzzNotifyEvent(f *testing.F) {
	f.Add(event(notifyDeviceInterface, append(make([]byte, 16), wide("a\x00")...)))
	f.Add(instance(`PCI\VEN_10DE`))
	f.Add([]byte{2})
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, err := parseNotifyEvent(data); err != nil && got != (NotifyEvent{}) {
			t.Errorf("%v and %+v", err, got)
		}
	})
}

func TestDispatcher(t *testing.T) {
	t.Parallel()
	var d dispatcher
	var got []string
	receiver := func(name string) func(NotifyEvent) {
		return func(e NotifyEvent) { got = append(got, name+" "+e.Name) }
	}
	first, second := d.add(receiver("first")), d.add(receiver("second"))
	d.dispatch(second, instance("a"))
	d.dispatch(first, instance("b"))
	d.dispatch(first, nil)
	d.remove(first)
	d.dispatch(first, instance("late"))
	d.dispatch(99, instance("unknown"))
	if third := d.add(receiver("third")); third == first || third == second {
		t.Errorf("number %d is used again", third)
	}
	if want := []string{"second a", "first b", "first "}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A receiver can remove itself during an event.
func TestReceiverRemovesItself(t *testing.T) {
	t.Parallel()
	var d dispatcher
	var number uintptr
	events := 0
	number = d.add(func(NotifyEvent) { events++; d.remove(number) })
	d.dispatch(number, nil)
	d.dispatch(number, nil)
	if events != 1 {
		t.Errorf("%d events, want 1", events)
	}
}

// fakeNotifier waits for its callbacks in unregister, as Windows does.
type fakeNotifier struct {
	d         *dispatcher
	failAt    int // the registration that fails, from 1
	callbacks sync.WaitGroup

	mu           sync.Mutex
	number       uintptr
	filters      []notifyFilter
	registered   map[uintptr]bool
	unregistered int
}

var errRefused = errors.New("refused")

func (f *fakeNotifier) register(filter *notifyFilter, number uintptr) (uintptr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.filters = append(f.filters, *filter); len(f.filters) == f.failAt {
		return 0, errRefused
	}
	if f.registered == nil {
		f.registered = map[uintptr]bool{}
	}
	f.number = number
	handle := uintptr(100 + len(f.filters))
	f.registered[handle] = true
	return handle, nil
}

func (f *fakeNotifier) unregister(handle uintptr) error {
	f.callbacks.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.registered[handle] {
		return errors.New("unknown handle")
	}
	delete(f.registered, handle)
	f.unregistered++
	return nil
}

// notify calls back on another goroutine.
func (f *fakeNotifier) notify(name string) {
	f.mu.Lock()
	number := f.number
	f.mu.Unlock()
	f.callbacks.Go(func() { f.d.dispatch(number, instance(name)) })
}

func (f *fakeNotifier) awaitFilters(t *testing.T, n int) {
	t.Helper()
	testutil.Eventually(t, "registration", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.filters) == n
	})
}

func TestWatchUntilContextEnds(t *testing.T) {
	t.Parallel()
	f := &fakeNotifier{d: &dispatcher{}}
	ctx, cancel := context.WithCancel(t.Context())
	changes, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- watch(ctx, f.d, f, []GUID{DisplayInterface(), ComputeInterface()},
			func(e NotifyEvent) bool { return e.Name != "other" }, func() { changes <- struct{}{} })
	}()
	f.awaitFilters(t, 3)
	f.notify("other")
	for range 3 {
		f.notify("ours")
		select {
		case <-changes:
		case <-time.After(testutil.Timeout):
			t.Fatal("no change")
		}
	}
	f.callbacks.Wait()
	select {
	case <-changes:
		t.Error("a change too many")
	default:
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(f.registered) > 0 || f.unregistered != 3 || len(f.d.receivers) > 0 {
		t.Errorf("%d registrations and %d receivers are left, %d unregistered", len(f.registered), len(f.d.receivers), f.unregistered)
	}
}

// If callbacks blocked while the receiver is busy, unregistering would deadlock.
func TestCallbacksDoNotBlock(t *testing.T) {
	t.Parallel()
	f := &fakeNotifier{d: &dispatcher{}}
	ctx, cancel := context.WithCancel(t.Context())
	busy, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- watch(ctx, f.d, f, nil, func(NotifyEvent) bool { return true }, func() { busy <- struct{}{}; <-ctx.Done() })
	}()
	f.awaitFilters(t, 1)
	f.notify("first")
	<-busy
	for range 100 {
		f.notify("more")
	}
	f.callbacks.Wait()
	cancel()
	for {
		select {
		case <-busy: // One of the hundred can be reported before the end.
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			return
		case <-time.After(testutil.Timeout):
			t.Fatal("watch does not end")
		}
	}
}

func TestWatchUnregistersAfterFailedRegistration(t *testing.T) {
	t.Parallel()
	for failAt := 1; failAt <= 3; failAt++ {
		f := &fakeNotifier{d: &dispatcher{}, failAt: failAt}
		err := watch(t.Context(), f.d, f, []GUID{DisplayInterface(), ComputeInterface()}, nil, nil)
		if !errors.Is(err, errRefused) || len(f.registered) > 0 || f.unregistered != failAt-1 || len(f.d.receivers) > 0 {
			t.Errorf("%d: %v, %d registrations and %d receivers are left", failAt, err, len(f.registered), len(f.d.receivers))
		}
	}
}

func TestNotifyFilters(t *testing.T) {
	t.Parallel()
	want := []notifyFilter{
		{Size: 416, FilterType: notifyDeviceInstance, Flags: notifyAllDeviceInstances},
		{Size: 416, FilterType: notifyDeviceInterface, Interface: DisplayInterface()},
	}
	if got := notifyFilters([]GUID{DisplayInterface()}); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}
