package pnp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"directx-nri/discovery"
	"directx-nri/internal/testutil"
)

func ids(devices []discovery.Device) []string {
	var list []string
	for _, d := range devices {
		if d.Kind() != discovery.KindNone {
			list = append(list, d.InstanceID)
		}
	}
	return list
}

func TestDevicesAreReadEachTime(t *testing.T) {
	t.Parallel()
	system := &fakeSystem{snapshot: node(1)}
	source := Open(system, testutil.Quiet())
	for n := 1; n < 4; n++ {
		system.change(false, func(s *Snapshot) { *s = node(n) })
		devices, err := source.Devices(t.Context())
		if err != nil || len(ids(devices)) != n {
			t.Errorf("%v, error %v; want %d GPUs", ids(devices), err, n)
		}
		// The list is the caller's own.
		devices[0].System32[0].Source = "changed"
		devices[0].Notes = append(devices[0].Notes, "changed")
	}
	system.set(func(f *fakeSystem) { f.err = errors.New("so that the last list is answered again") })
	devices, err := source.Devices(t.Context())
	if err != nil || devices[0].System32[0].Source != "nvcudadebugger.dll" {
		t.Errorf("a caller's change came back: %+v, error %v", devices[0], err)
	}
}

func TestLastGoodListStaysWhileWindowsFails(t *testing.T) {
	t.Parallel()
	system := &fakeSystem{snapshot: node(2), err: errors.New("SetupDiGetClassDevsEx: access is denied")}
	log, hook := logtest.NewNullLogger()
	source := Open(system, log)
	for range 2 {
		if devices, err := source.Devices(t.Context()); err == nil || !strings.Contains(err.Error(), "access is denied") {
			t.Errorf("%v, error %v", devices, err)
		}
	}
	system.set(func(f *fakeSystem) { f.err = nil })
	if devices, err := source.Devices(t.Context()); err != nil || len(ids(devices)) != 2 {
		t.Errorf("%v, error %v", ids(devices), err)
	}
	system.set(func(f *fakeSystem) { f.err, f.snapshot = errors.New("again"), Snapshot{} })
	for range 2 {
		if devices, err := source.Devices(t.Context()); err != nil || len(ids(devices)) != 2 {
			t.Errorf("%v, error %v", ids(devices), err)
		}
	}
	var told []string
	for _, entry := range hook.AllEntries() {
		if entry.Level == logrus.ErrorLevel || strings.Contains(entry.Message, "again") {
			told = append(told, entry.Message)
		}
	}
	if len(told) != 3 || !strings.Contains(told[0], "there are none") || !strings.Contains(told[1], "tells of its GPUs again") || !strings.Contains(told[2], "stay in force") {
		t.Errorf("the log says %q", told)
	}
}

func TestEndedContext(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the cause"))
	source := Open(&fakeSystem{snapshot: node(1)}, testutil.Quiet())
	if _, err := source.Devices(t.Context()); err != nil {
		t.Fatal(err)
	}
	if devices, err := source.Devices(ended); err == nil || !strings.Contains(err.Error(), "the cause") {
		t.Errorf("%v, error %v", devices, err)
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	system := &fakeSystem{snapshot: node(4)}
	source := Open(system, testutil.Quiet())
	gone := `PCI\VEN_10DE&DEV_1\GONE`
	devices, err := source.Find(t.Context(), []string{strings.ToLower(t4(2).InstanceID), gone})
	if err != nil || len(devices) != 1 || system.looks() != 0 {
		t.Fatalf("%+v, error %v, %d looks at everything", devices, err, system.looks())
	}
	whole, err := source.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want, _ := discovery.Find(whole, t4(2).InstanceID)
	// What DXCore alone says is not known.
	want.DedicatedMemory, want.SupportsCompute = 0, false
	want.Notes = devices[0].Notes
	if diff := cmp.Diff(want, devices[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	// It keeps nothing: a driver that was replaced is found at once, without a
	// word to anybody, and so is a failure.
	system.change(false, func(s *Snapshot) {
		s.Devices[4].INFStore, s.Devices[4].Values = `C:\new`, []Value{multi("CopyToVmOverwrite", "a", "new.dll")}
	})
	if devices, err = source.Find(t.Context(), []string{t4(2).InstanceID}); err != nil || devices[0].DriverStorePath != `C:\new` || devices[0].System32[0].Source != "new.dll" {
		t.Errorf("%+v, error %v", devices, err)
	}
	system.set(func(f *fakeSystem) { f.err = errors.New("access is denied") })
	if devices, err = source.Find(t.Context(), []string{t4(2).InstanceID}); err == nil || !strings.Contains(err.Error(), "access is denied") {
		t.Errorf("%+v, error %v", devices, err)
	}
}

// What the whole list has as healthy is healthy when it is looked up: a container
// that was promised it must not wait for ever.
func TestFindIsNoStricterThanTheList(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*Raw){
		"whole":                  func(*Raw) {},
		"no user-mode driver":    func(r *Raw) { r.Values = nil },
		"no LUID":                func(r *Raw) { r.LUID = nil },
		"status not known":       func(r *Raw) { r.Status = 0 },
		"INF alone":              func(r *Raw) { r.Values = r.Values[1:] },
		"user-mode driver alone": func(r *Raw) { r.INFStore = "" },
		"of the compute class":   func(r *Raw) { r.Class = ClassComputeAccelerator },
		"of no known class":      func(r *Raw) { r.Class = "" },
		"runtime file is wrong":  func(r *Raw) { r.Values[3].Type = 4 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw := gpu(edit)
			source := Open(&fakeSystem{snapshot: Snapshot{Devices: []Raw{raw}, Adapters: []Adapter{full(*t4(0).LUID)}}}, testutil.Quiet())
			whole, err := source.Devices(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			listed, _ := discovery.Find(whole, raw.InstanceID)
			found, err := source.Find(t.Context(), []string{raw.InstanceID})
			if err != nil || len(found) != 1 {
				t.Fatalf("%+v, error %v", found, err)
			}
			if listed.Health.OK() && !found[0].Health.OK() {
				t.Errorf("listed as %s and found as %s", listed.Health, found[0].Health)
			}
			if diff := cmp.Diff(listed.System32, found[0].System32); diff != "" || listed.DriverStorePath != found[0].DriverStorePath || listed.LocationPath != found[0].LocationPath {
				t.Errorf("the container would get something else: %s %+v", diff, found[0])
			}
		})
	}
}

// What the whole list knows to be no GPU, or none that works, is not handed out
// because it was one when it was allocated.
func TestFindIsNoLaxerThanTheList(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string]Raw{
		"Windows' own driver in place of the manufacturer's": gpu(func(r *Raw) { r.Values = nil; r.LUID = pointer(discovery.LUID(0xFB)) }),
		"without Direct3D": gpu(func(r *Raw) { r.LUID = nil }),
		"frame buffer":     frameBuffer(),
		"disabled":         gpu(func(r *Raw) { r.Problem = 22 }),
		"files not read":   gpu(func(r *Raw) { r.ValuesErr = errors.New("access is denied") }),
		"not there at all": gpu(func(r *Raw) { r.LUID, r.Problem = nil, 24 }),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			system := &fakeSystem{snapshot: Snapshot{Devices: []Raw{raw, t4(1)}, Adapters: []Adapter{full(*t4(1).LUID)}}}
			source := Open(system, testutil.Quiet())
			whole, err := source.Devices(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			listed, _ := discovery.Find(whole, raw.InstanceID)
			found, err := source.Find(t.Context(), []string{strings.ToLower(raw.InstanceID)})
			if err != nil || len(found) != 1 {
				t.Fatalf("%+v, error %v", found, err)
			}
			if listed.Health.OK() || found[0].Health.OK() {
				t.Errorf("listed as %s and found as %s", listed.Health, found[0].Health)
			}
			// Everything is asked where nothing else tells.
			if looks, doubted := system.looks()-1, unable(raw) == "" && raw.ValuesErr == nil; doubted != (looks == 1) {
				t.Errorf("%d looks at everything", looks)
			}
			system.set(func(f *fakeSystem) { f.snapshot.Devices = f.snapshot.Devices[1:] })
			if found, err = source.Find(t.Context(), []string{raw.InstanceID}); err != nil || len(found) > 0 {
				t.Errorf("gone, and found: %+v, error %v", found, err)
			}
		})
	}
}

// watched runs Watch on system in a bubble of its own time until test returns.
func watched(t *testing.T, system *fakeSystem, test func(source *Source, changes *atomic.Int64)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := Open(system, testutil.Quiet())
		if _, err := source.Devices(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		var changes atomic.Int64
		go func() { done <- source.Watch(ctx, func() { changes.Add(1) }) }()
		synctest.Wait()
		test(source, &changes)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch: %v", err)
		}
	})
}

func TestWatchFollowsNotifications(t *testing.T) {
	system := &fakeSystem{snapshot: node(2)}
	watched(t, system, func(source *Source, changes *atomic.Int64) {
		// All that follows a start has settled.
		time.Sleep(time.Minute)
		for i, edit := range []func(*Snapshot){
			func(s *Snapshot) { *s = node(3) },
			func(s *Snapshot) { *s = node(1) },
			func(s *Snapshot) { s.Devices[2].DriverVersion, s.Devices[2].INFStore = "32.0.15.1", g4dnStore },
			func(s *Snapshot) {
				s.Devices[2].Values = append(s.Devices[2].Values, multi("CopyToVmOverwrite", "a", "a.dll"))
			},
			func(s *Snapshot) { s.Devices[2].Problem = 43 },
		} {
			system.change(true, edit)
			time.Sleep(source.timing.debounce)
			synctest.Wait()
			if got := changes.Load(); got != int64(i+1) {
				t.Errorf("change %d: told %d times", i, got)
			}
			time.Sleep(time.Minute)
		}
		if got := changes.Load(); got != 5 {
			t.Errorf("told %d times", got)
		}
	})
}

// A driver's installation notifies many times; it makes few looks and no more
// than one of them waits.
func TestWatchTakesNotificationsTogether(t *testing.T) {
	system := &fakeSystem{snapshot: node(2)}
	watched(t, system, func(source *Source, changes *atomic.Int64) {
		time.Sleep(time.Minute)
		before := system.looks()
		for n := range 100 {
			system.change(true, func(s *Snapshot) { s.Devices[2].DriverVersion = fmt.Sprint("1.0.0.", n) })
			time.Sleep(source.timing.debounce / 50)
		}
		time.Sleep(source.timing.debounce)
		synctest.Wait()
		if looks := system.looks() - before; looks < 2 || looks > 3 {
			t.Errorf("%d looks", looks)
		}
		if got := changes.Load(); got < 2 || got > 3 {
			t.Errorf("told %d times", got)
		}
	})
}

// What DXCore or the registry says a while after the notification is found soon,
// too.
func TestWatchLooksAgainAfterANotification(t *testing.T) {
	system := &fakeSystem{snapshot: node(2)}
	watched(t, system, func(source *Source, changes *atomic.Int64) {
		time.Sleep(time.Minute)
		system.change(true, func(s *Snapshot) { s.Adapters = s.Adapters[:2] })
		time.Sleep(source.timing.debounce)
		synctest.Wait()
		system.change(false, func(s *Snapshot) { s.Adapters = node(2).Adapters })
		time.Sleep(source.timing.settle)
		synctest.Wait()
		if got := changes.Load(); got != 2 {
			t.Errorf("told %d times", got)
		}
	})
}

func TestWatchFindsWhatNobodyNotifiesOf(t *testing.T) {
	system := &fakeSystem{snapshot: node(2)}
	watched(t, system, func(source *Source, changes *atomic.Int64) {
		time.Sleep(time.Minute)
		before := system.looks()
		system.change(false, func(s *Snapshot) { s.Devices[2].Values = nil })
		time.Sleep(source.timing.poll)
		synctest.Wait()
		if got := changes.Load(); got != 1 {
			t.Errorf("told %d times", got)
		}
		if looks := system.looks() - before; looks != 1 {
			t.Errorf("%d looks", looks)
		}
	})
}

func TestWatchWithoutNotifications(t *testing.T) {
	system := &fakeSystem{snapshot: node(2), notifyErr: fmt.Errorf("CM_Register_Notification: %w", errors.ErrUnsupported)}
	watched(t, system, func(source *Source, changes *atomic.Int64) {
		time.Sleep(5 * time.Minute)
		system.change(false, func(s *Snapshot) { *s = node(3) })
		time.Sleep(source.timing.blind)
		synctest.Wait()
		if got := changes.Load(); got != 1 {
			t.Errorf("told %d times", got)
		}
		if n := system.registrations(); n != 1 {
			t.Errorf("%d registrations", n)
		}
	})
}

func TestWatchRegistersAgain(t *testing.T) {
	system := &fakeSystem{snapshot: node(2), notifyErr: errors.New("out of memory")}
	watched(t, system, func(source *Source, changes *atomic.Int64) {
		system.change(false, func(s *Snapshot) { *s = node(3) })
		time.Sleep(source.timing.blind)
		synctest.Wait()
		if got := changes.Load(); got != 1 {
			t.Errorf("told %d times while Windows does not notify", got)
		}
		system.set(func(f *fakeSystem) { f.notifyErr = nil })
		time.Sleep(2 * time.Minute)
		system.change(true, func(s *Snapshot) { *s = node(4) })
		time.Sleep(source.timing.debounce)
		synctest.Wait()
		if got := changes.Load(); got != 2 {
			t.Errorf("told %d times", got)
		}
		before := system.looks()
		time.Sleep(5 * time.Minute)
		if looks := system.looks() - before; looks > 30 {
			t.Errorf("%d looks in five minutes", looks)
		}
	})
}

// When notifications end, nobody waits for the next look that was due with them.
func TestWatchLooksByItselfWhenNotificationsEnd(t *testing.T) {
	system := &fakeSystem{snapshot: node(2)}
	watched(t, system, func(source *Source, changes *atomic.Int64) {
		for i, err := range []error{errors.New("invalid handle"), nil} {
			time.Sleep(source.timing.poll + source.timing.settled + time.Minute)
			synctest.Wait()
			system.end(err)
			synctest.Wait()
			time.Sleep(source.timing.debounce)
			synctest.Wait()
			system.change(false, func(s *Snapshot) { *s = node(3 + i) })
			time.Sleep(source.timing.blind)
			synctest.Wait()
			if got := changes.Load(); got != int64(i+1) {
				t.Errorf("told %d times", got)
			}
			if n := system.registrations(); n != i+1 {
				t.Errorf("%d registrations", n)
			}
		}
	})
}

func TestWatchTellsWhatChangedBeforeIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		system := &fakeSystem{snapshot: node(2)}
		source := Open(system, testutil.Quiet())
		for n := 2; n < 4; n++ {
			system.change(false, func(s *Snapshot) { *s = node(n) })
			if _, err := source.Devices(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		told := make(chan struct{}, 10)
		done := make(chan error)
		go func() { done <- source.Watch(ctx, func() { told <- struct{}{} }) }()
		synctest.Wait()
		if len(told) != 1 {
			t.Errorf("told %d times", len(told))
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Watch does not return before Windows has ended to notify: nobody else would wait
// for that.
func TestWatchWaitsForTheEndOfNotifications(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		system := &slowToEnd{fakeSystem: &fakeSystem{snapshot: node(1)}}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if err := Open(system, testutil.Quiet()).Watch(ctx, func() {}); err != nil {
			t.Error(err)
		}
		if !system.ended.Load() {
			t.Error("Watch has returned, and Windows still notifies")
		}
	})
}

// slowToEnd is a Windows that takes its time to end its notifications.
type slowToEnd struct {
	*fakeSystem
	ended atomic.Bool
}

func (s *slowToEnd) Notify(ctx context.Context, changed func()) error {
	defer s.ended.Store(true)
	err := s.fakeSystem.Notify(ctx, changed)
	time.Sleep(time.Minute)
	return err
}

func TestWatchBeforeTheFirstList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		system := &fakeSystem{snapshot: node(2), err: errors.New("not yet")}
		source := Open(system, testutil.Quiet())
		ctx, cancel := context.WithCancel(t.Context())
		told := make(chan struct{}, 10)
		done := make(chan error)
		go func() { done <- source.Watch(ctx, func() { told <- struct{}{} }) }()
		time.Sleep(time.Minute)
		if len(told) != 0 {
			t.Errorf("told %d times of nothing", len(told))
		}
		system.set(func(f *fakeSystem) { f.err = nil })
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(told) != 1 {
			t.Errorf("told %d times of the first list", len(told))
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestLog(t *testing.T) {
	t.Parallel()
	system := &fakeSystem{snapshot: node(2)}
	log, hook := logtest.NewNullLogger()
	log.SetOutput(io.Discard)
	source := Open(system, log)
	for _, step := range []struct {
		name string
		edit func(*Snapshot)
		want []string // level, GPU and message, in order
	}{
		{"first look", func(*Snapshot) {}, []string{
			"info PCIROOT(0)#PCI(1B00) GPU found", "info PCIROOT(0)#PCI(1C00) GPU found",
			"info PCIROOT(0)#PCI(0300) GPU found", "info PCIROOT(0)#PCI(0300) device cannot be used", `info ROOT\BASICRENDER\0000 GPU found`,
		}},
		{"nothing new", func(*Snapshot) {}, nil},
		{"arrival", func(s *Snapshot) { *s = node(3) }, []string{"info PCIROOT(0)#PCI(1D00) GPU found"}},
		{"removal", func(s *Snapshot) { *s = node(2) }, []string{"info PCIROOT(0)#PCI(1D00) GPU has gone"}},
		{"driver", func(s *Snapshot) { s.Devices[2].DriverVersion = "32.0.15.1" }, []string{"info PCIROOT(0)#PCI(1B00) the GPU's driver is another now; containers that start from now on get its files"}},
		{"failure", func(s *Snapshot) { s.Devices[2].Problem = 43 }, []string{"warning PCIROOT(0)#PCI(1B00) GPU cannot be used"}},
		{"the same failure", func(*Snapshot) {}, nil},
		{"recovery", func(s *Snapshot) { s.Devices[2].Problem = 0 }, []string{"info PCIROOT(0)#PCI(1B00) GPU can be used again"}},
		{"note", func(s *Snapshot) { s.Devices[2].Unread = []error{errors.New("x")} }, []string{"info PCIROOT(0)#PCI(1B00) GPU has a note"}},
		{"other kind", func(s *Snapshot) { s.Adapters[1].D3D11Graphics, s.Adapters[1].D3D12Graphics = false, false }, []string{"info PCIROOT(0)#PCI(1B00) GPU is of another kind now"}},
	} {
		hook.Reset()
		system.change(false, step.edit)
		if _, err := source.Devices(t.Context()); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, entry := range hook.AllEntries() {
			got = append(got, fmt.Sprintf("%s %v %s", entry.Level, entry.Data["gpu"], entry.Message))
		}
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}
