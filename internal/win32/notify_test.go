package win32

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"
)

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// event returns a CM_NOTIFY_EVENT_DATA.
func event(kind uint32, union []byte) []byte {
	data := binary.LittleEndian.AppendUint32(nil, kind)
	return append(append(data, 0, 0, 0, 0), union...) // Reserved.
}

func TestNotifyEvents(t *testing.T) {
	t.Parallel()
	display := []byte{0x80, 0x51, 0xa0, 0x1c, 0x99, 0xa6, 0x0a, 0x45, 0x9a, 0x0c, 0xde, 0x4f, 0xbe, 0x3d, 0xdd, 0x89}
	for name, test := range map[string]struct {
		action NotifyAction
		data   []byte
		want   NotifyEvent
		ok     bool
	}{
		"interface": {
			InterfaceArrival, event(notifyDeviceInterface, append(display, wide(`\\?\PCI#VEN_10DE`+"\x00")...)),
			NotifyEvent{InterfaceArrival, DisplayInterface(), `\\?\PCI#VEN_10DE`}, true,
		},
		"instance": {
			InstanceStarted, event(notifyDeviceInstance, wide(`PCI\VEN_10DE`+"\x00\x00")),
			NotifyEvent{Action: InstanceStarted, Name: `PCI\VEN_10DE`}, true,
		},
		"instance whose name does not end": {
			InstanceStarted, event(notifyDeviceInstance, append(wide(`PCI`), 0)),
			NotifyEvent{Action: InstanceStarted, Name: `PCI`}, true,
		},
		"interface cut short": {InterfaceRemoval, event(notifyDeviceInterface, display[:15]), NotifyEvent{Action: InterfaceRemoval}, false},
		"cut short":           {InterfaceRemoval, make([]byte, 7), NotifyEvent{Action: InterfaceRemoval}, false},
		"nothing":             {InterfaceRemoval, nil, NotifyEvent{Action: InterfaceRemoval}, false},
		"handle":              {6, event(1, make([]byte, 28)), NotifyEvent{Action: 6}, false},
	} {
		got, err := parseNotifyEvent(test.action, test.data)
		if got != test.want || (err == nil) != test.ok {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, test.want)
		}
	}
}

func FuzzNotifyEvent(f *testing.F) {
	f.Add(uint32(0), event(notifyDeviceInterface, append(make([]byte, 16), wide("a\x00")...)))
	f.Add(uint32(8), event(notifyDeviceInstance, wide(`PCI\VEN_10DE`+"\x00")))
	f.Add(uint32(9), []byte{2})
	f.Fuzz(func(t *testing.T, action uint32, data []byte) {
		got, err := parseNotifyEvent(NotifyAction(action), data)
		if got.Action != NotifyAction(action) {
			t.Errorf("the action became %d", got.Action)
		}
		if err != nil && (got.Name != "" || got.Interface != GUID{}) {
			t.Errorf("%v, and yet %+v", err, got)
		}
	})
}

func TestEachGetsItsOwnEvents(t *testing.T) {
	t.Parallel()
	var d dispatcher
	var got []string
	take := func(name string) func(NotifyEvent) {
		return func(e NotifyEvent) { got = append(got, name+" "+e.Name) }
	}
	first, second := d.add(take("first")), d.add(take("second"))
	d.dispatch(second, InstanceStarted, event(notifyDeviceInstance, wide("a")))
	d.dispatch(first, InstanceStarted, event(notifyDeviceInstance, wide("b")))
	d.dispatch(first, InterfaceRemoval, nil) // Cannot be read, and is news all the same.
	d.remove(first)
	d.dispatch(first, InstanceRemoved, event(notifyDeviceInstance, wide("late")))
	d.dispatch(99, InstanceStarted, event(notifyDeviceInstance, wide("nobody's")))
	if again := d.add(take("third")); again == first || again == second {
		t.Errorf("the number %d was used before", again)
	}
	if want := []string{"second a", "first b", "first "}; len(got) != 3 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("%q, want %q", got, want)
	}
}

// A receiver that takes itself off the list while it is told must not wait for
// itself.
func TestReceiverMayLeaveWhileItIsTold(t *testing.T) {
	t.Parallel()
	var d dispatcher
	var number uintptr
	told := 0
	number = d.add(func(NotifyEvent) { told++; d.remove(number) })
	d.dispatch(number, InstanceStarted, nil)
	d.dispatch(number, InstanceStarted, nil)
	if told != 1 {
		t.Errorf("told %d times, want once", told)
	}
}

// fakeNotifier is a notifier that, as Windows does, waits for its callbacks when it is
// told to end them.
type fakeNotifier struct {
	d         *dispatcher
	refuses   int // the registration that fails, counted from 1
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
	if f.filters = append(f.filters, *filter); len(f.filters) == f.refuses {
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
		return errors.New("nobody has this handle")
	}
	delete(f.registered, handle)
	f.unregistered++
	return nil
}

// tell calls back on a thread of its own.
func (f *fakeNotifier) tell(name string) {
	f.mu.Lock()
	number := f.number
	f.mu.Unlock()
	f.callbacks.Go(func() { f.d.dispatch(number, InstanceStarted, event(notifyDeviceInstance, wide(name))) })
}

func TestWatchTellsOfEventsUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	f := &fakeNotifier{d: &dispatcher{}}
	ctx, cancel := context.WithCancel(t.Context())
	told, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- watch(ctx, f.d, f, []GUID{DisplayInterface(), ComputeInterface()},
			func(e NotifyEvent) bool { return e.Name != "another" }, func() { told <- struct{}{} })
	}()
	await(t, func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.filters) == 3 })
	f.tell("another")
	for range 3 {
		f.tell("ours")
		select {
		case <-told:
		case <-time.After(patience):
			t.Fatal("it is not told")
		}
	}
	f.callbacks.Wait()
	select {
	case <-told:
		t.Error("told of what nobody wants, or twice")
	default:
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(f.registered) > 0 || f.unregistered != 3 || len(f.d.takes) > 0 {
		t.Errorf("%d registrations and %d receivers are left, %d were ended", len(f.registered), len(f.d.takes), f.unregistered)
	}
}

// Callbacks that come while the receiver is busy, or is ending, wait for nobody:
// otherwise unregistering would wait for them for ever.
func TestCallbacksWaitForNobody(t *testing.T) {
	t.Parallel()
	f := &fakeNotifier{d: &dispatcher{}}
	ctx, cancel := context.WithCancel(t.Context())
	busy, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- watch(ctx, f.d, f, nil, func(NotifyEvent) bool { return true }, func() { busy <- struct{}{}; <-ctx.Done() })
	}()
	await(t, func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.number != 0 })
	f.tell("the first")
	<-busy
	for range 100 {
		f.tell("more")
	}
	f.callbacks.Wait()
	cancel()
	for {
		select {
		case <-busy: // Of the hundred, one may be told on the way out.
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			return
		case <-time.After(patience):
			t.Fatal("it does not end")
		}
	}
}

func TestWatchLeavesNothingWhenARegistrationIsRefused(t *testing.T) {
	t.Parallel()
	for refuses := 1; refuses <= 3; refuses++ {
		f := &fakeNotifier{d: &dispatcher{}, refuses: refuses}
		err := watch(t.Context(), f.d, f, []GUID{DisplayInterface(), ComputeInterface()}, nil, nil)
		if !errors.Is(err, errRefused) || len(f.registered) > 0 || f.unregistered != refuses-1 || len(f.d.takes) > 0 {
			t.Errorf("the %d. is refused: %v, left %v", refuses, err, f.registered)
		}
	}
}

func TestFilters(t *testing.T) {
	t.Parallel()
	want := []notifyFilter{
		{Size: 416, FilterType: notifyDeviceInstance, Flags: notifyAllDeviceInstances},
		{Size: 416, FilterType: notifyDeviceInterface, Interface: DisplayInterface()},
		{Size: 416, FilterType: notifyDeviceInterface, Interface: ComputeInterface()},
	}
	if got := notifyFilters([]GUID{DisplayInterface(), ComputeInterface()}); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// await waits until happened.
func await(t *testing.T, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !happened(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not happen")
		}
	}
}
