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
	logtest "github.com/sirupsen/logrus/hooks/test"

	"directx-nri/discovery"
	"directx-nri/internal/testutil"
	"directx-nri/internal/win32"
)

// gpuCount returns the number of devices that can be offered.
func gpuCount(devices []discovery.Device) int {
	n := 0
	for _, d := range devices {
		if d.Kind() != discovery.KindNone {
			n++
		}
	}
	return n
}

func TestLastGoodList(t *testing.T) {
	t.Parallel()
	system := &fakeSystem{snapshot: node(2), err: errors.New("access is denied")}
	log, hook := logtest.NewNullLogger()
	source := Open(system, log)
	for range 2 {
		if devices, err := source.Devices(t.Context()); err == nil || !strings.Contains(err.Error(), "access is denied") {
			t.Errorf("%v, %v", devices, err)
		}
	}
	for _, step := range []error{nil, errors.New("failed"), errors.New("failed")} {
		system.set(func(f *fakeSystem) {
			if f.err = step; step != nil {
				f.snapshot = Snapshot{}
			}
		})
		if devices, err := source.Devices(t.Context()); err != nil || gpuCount(devices) != 2 {
			t.Errorf("%+v, %v", devices, err)
		}
	}
	var logged []string
	for _, entry := range hook.AllEntries() {
		if strings.Contains(entry.Message, "read") {
			logged = append(logged, entry.Level.String()+" "+entry.Message)
		}
	}
	if diff := cmp.Diff([]string{
		"error Failed to read the GPUs; there are none until a retry succeeds",
		"info GPUs can be read again",
		"error Failed to read the GPUs; the last list stays in force until a retry succeeds",
	}, logged); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

func TestCanceledContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the cause"))
	source := Open(&fakeSystem{snapshot: node(1)}, testutil.Quiet())
	if _, err := source.Devices(t.Context()); err != nil {
		t.Fatal(err)
	}
	if devices, err := source.Devices(ctx); err == nil || !strings.Contains(err.Error(), "the cause") {
		t.Errorf("%v, %v", devices, err)
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	system := &fakeSystem{snapshot: node(4)}
	source := Open(system, testutil.Quiet())
	id := t4(2).InstanceID
	devices, err := source.Find(t.Context(), []string{strings.ToLower(id), `PCI\VEN_10DE&DEV_1\GONE`})
	if n, _ := system.counts(); err != nil || len(devices) != 1 || n != 0 {
		t.Fatalf("%+v, %v, %d snapshots", devices, err, n)
	}
	all, err := source.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want, _ := discovery.Find(all, id)
	// Only DXCore has these.
	want.DedicatedMemory, want.SupportsCompute = 0, false
	want.Notes = devices[0].Notes
	if diff := cmp.Diff(want, devices[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	// Nothing is cached: neither the driver's files nor the last good list.
	system.change(false, func(s *Snapshot) {
		s.Devices[4].INFStore, s.Devices[4].Values = `C:\new`, []Value{multi("CopyToVmOverwrite", "a", "new.dll")}
	})
	if devices, err = source.Find(t.Context(), []string{id}); err != nil || devices[0].DriverStorePath != `C:\new` || devices[0].System32[0].Source != "new.dll" {
		t.Errorf("%+v, %v", devices, err)
	}
	system.set(func(f *fakeSystem) { f.err = errors.New("access is denied") })
	if devices, err = source.Find(t.Context(), []string{id}); err == nil || !strings.Contains(err.Error(), "access is denied") {
		t.Errorf("%+v, %v", devices, err)
	}
}

// Find and Devices agree on whether a device can be used, and on its files.
func TestFindAgreesWithDevices(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		raw Raw
		// other has the only adapter instead of the device.
		other     bool
		healthy   bool
		snapshots int
	}{
		"complete":               {raw: gpu(func(*Raw) {}), healthy: true},
		"no user-mode driver":    {raw: gpu(func(r *Raw) { r.Values = nil }), healthy: true, snapshots: 1},
		"no LUID":                {raw: gpu(func(r *Raw) { r.LUID = nil }), healthy: true, snapshots: 1},
		"unknown status":         {raw: gpu(func(r *Raw) { r.Status = 0 }), healthy: true},
		"INF alone":              {raw: gpu(func(r *Raw) { r.Values = r.Values[1:] }), healthy: true, snapshots: 1},
		"user-mode driver alone": {raw: gpu(func(r *Raw) { r.INFStore = "" }), healthy: true},
		"compute class":          {raw: gpu(func(r *Raw) { r.Class = win32.ComputeAcceleratorClass() }), healthy: true},
		"unknown class":          {raw: gpu(func(r *Raw) { r.Class = win32.GUID{} }), healthy: true},
		"invalid runtime file":   {raw: gpu(func(r *Raw) { r.Values[3].Type = 4 }), healthy: true},

		"Windows' own driver": {raw: gpu(func(r *Raw) { r.Values = nil; r.LUID = pointer(discovery.LUID(0xFB)) }), other: true, snapshots: 1},
		"no Direct3D":         {raw: gpu(func(r *Raw) { r.LUID = nil }), other: true, snapshots: 1},
		"frame buffer":        {raw: frameBuffer(), other: true, snapshots: 1},
		"disabled":            {raw: gpu(func(r *Raw) { r.Problem = 22 }), other: true},
		"unread files":        {raw: gpu(func(r *Raw) { r.ValuesErr = errors.New("access is denied") }), other: true},
		"missing":             {raw: gpu(func(r *Raw) { r.LUID, r.Problem = nil, 24 }), other: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			snapshot := Snapshot{Devices: []Raw{test.raw}, Adapters: []Adapter{full(*t4(0).LUID)}}
			if test.other {
				snapshot = Snapshot{Devices: []Raw{test.raw, t4(1)}, Adapters: []Adapter{full(*t4(1).LUID)}}
			}
			system := &fakeSystem{snapshot: snapshot}
			source := Open(system, testutil.Quiet())
			all, err := source.Devices(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			listed, _ := discovery.Find(all, test.raw.InstanceID)
			found, err := source.Find(t.Context(), []string{strings.ToLower(test.raw.InstanceID)})
			if err != nil || len(found) != 1 {
				t.Fatalf("%+v, %v", found, err)
			}
			if listed.Health.OK() != test.healthy || found[0].Health.OK() != test.healthy {
				t.Errorf("listed as %s, found as %s", listed.Health, found[0].Health)
			}
			if n, _ := system.counts(); n-1 != test.snapshots {
				t.Errorf("%d snapshots, want %d", n-1, test.snapshots)
			}
			if diff := cmp.Diff(listed.System32, found[0].System32); diff != "" || listed.DriverStorePath != found[0].DriverStorePath || listed.LocationPath != found[0].LocationPath {
				t.Errorf("found %+v; files: %s", found[0], diff)
			}
			system.set(func(f *fakeSystem) { f.snapshot.Devices = f.snapshot.Devices[1:] })
			if found, err = source.Find(t.Context(), []string{test.raw.InstanceID}); err != nil || len(found) > 0 {
				t.Errorf("removed: %+v, %v", found, err)
			}
		})
	}
}

// watched runs test in a bubble while Watch runs.
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

func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestWatchNotifications(t *testing.T) {
	system := &fakeSystem{snapshot: node(2)}
	watched(t, system, func(source *Source, changes *atomic.Int64) {
		sleep(time.Minute)
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
			sleep(source.timing.debounce)
			if got := changes.Load(); got != int64(i+1) {
				t.Errorf("step %d: %d changes", i, got)
			}
			sleep(time.Minute)
		}
		if got := changes.Load(); got != 5 {
			t.Errorf("%d changes", got)
		}
	})
}

// The installation of a driver sends many notifications.
func TestWatchDebounces(t *testing.T) {
	system := &fakeSystem{snapshot: node(2)}
	watched(t, system, func(source *Source, changes *atomic.Int64) {
		sleep(time.Minute)
		before, _ := system.counts()
		for n := range 100 {
			system.change(true, func(s *Snapshot) { s.Devices[2].DriverVersion = fmt.Sprint("1.0.0.", n) })
			time.Sleep(source.timing.debounce / 50)
		}
		sleep(source.timing.debounce)
		after, _ := system.counts()
		if n := after - before; n < 2 || n > 3 || changes.Load() != int64(n) {
			t.Errorf("%d snapshots, %d changes", n, changes.Load())
		}
	})
}

// DXCore and the registry can lag behind the notification.
func TestWatchReadsAgainAfterNotification(t *testing.T) {
	system := &fakeSystem{snapshot: node(2)}
	watched(t, system, func(source *Source, changes *atomic.Int64) {
		sleep(time.Minute)
		system.change(true, func(s *Snapshot) { s.Adapters = s.Adapters[:2] })
		sleep(source.timing.debounce)
		system.change(false, func(s *Snapshot) { s.Adapters = node(2).Adapters })
		sleep(source.timing.settle)
		if got := changes.Load(); got != 2 {
			t.Errorf("%d changes", got)
		}
	})
}

func TestWatchWithoutNotifications(t *testing.T) {
	system := &fakeSystem{snapshot: node(2), notifyErr: fmt.Errorf("CM_Register_Notification: %w", errors.ErrUnsupported)}
	watched(t, system, func(source *Source, changes *atomic.Int64) {
		sleep(5 * time.Minute)
		system.change(false, func(s *Snapshot) { *s = node(3) })
		sleep(source.timing.blind)
		if _, registrations := system.counts(); changes.Load() != 1 || registrations != 1 {
			t.Errorf("%d changes, %d registrations", changes.Load(), registrations)
		}
	})
}

func TestWatchPollsWhenNotificationsEnd(t *testing.T) {
	system := &fakeSystem{snapshot: node(2)}
	watched(t, system, func(source *Source, changes *atomic.Int64) {
		for i, err := range []error{errors.New("invalid handle"), nil} {
			sleep(source.timing.poll + source.timing.settled + time.Minute)
			system.endNotify(err)
			synctest.Wait()
			sleep(source.timing.debounce)
			system.change(false, func(s *Snapshot) { *s = node(3 + i) })
			sleep(source.timing.blind)
			if _, registrations := system.counts(); changes.Load() != int64(i+1) || registrations != i+1 {
				t.Errorf("%d changes, %d registrations", changes.Load(), registrations)
			}
		}
	})
}

func TestWatchReportsEarlierChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		system := &fakeSystem{snapshot: node(2)}
		source := Open(system, testutil.Quiet())
		if _, err := source.Devices(t.Context()); err != nil {
			t.Fatal(err)
		}
		system.change(false, func(s *Snapshot) { *s = node(3) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		changes := 0
		if err := source.Watch(ctx, func() { changes++ }); err != nil || changes != 1 {
			t.Errorf("%d changes, %v", changes, err)
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

func TestWatchWaitsForEndOfNotifications(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		system := &slowToEnd{fakeSystem: &fakeSystem{snapshot: node(1)}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := Open(system, testutil.Quiet()).Watch(ctx, func() {}); err != nil || !system.ended.Load() {
			t.Errorf("%v, notifications ended: %t", err, system.ended.Load())
		}
	})
}

func TestWatchBeforeFirstList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		system := &fakeSystem{snapshot: node(2), err: errors.New("failed")}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		var changes []time.Duration
		start := time.Now()
		time.AfterFunc(time.Minute, func() { system.set(func(f *fakeSystem) { f.err = nil }) })
		err := Open(system, testutil.Quiet()).Watch(ctx, func() { changes = append(changes, time.Since(start)) })
		if err != nil || len(changes) != 1 || changes[0] < time.Minute {
			t.Errorf("changes after %v, %v", changes, err)
		}
	})
}

func TestChangelog(t *testing.T) {
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
		{"first read", func(*Snapshot) {}, []string{
			"info PCIROOT(0)#PCI(1B00) GPU found", "info PCIROOT(0)#PCI(1C00) GPU found",
			"info PCIROOT(0)#PCI(0300) GPU found", "info PCIROOT(0)#PCI(0300) Device cannot be used", `info ROOT\BASICRENDER\0000 GPU found`,
		}},
		{"no change", func(*Snapshot) {}, nil},
		{"arrival", func(s *Snapshot) { *s = node(3) }, []string{"info PCIROOT(0)#PCI(1D00) GPU found"}},
		{"removal", func(s *Snapshot) { *s = node(2) }, []string{"info PCIROOT(0)#PCI(1D00) GPU removed"}},
		{"driver", func(s *Snapshot) { s.Devices[2].DriverVersion = "32.0.15.1" }, []string{"info PCIROOT(0)#PCI(1B00) GPU driver changed; new containers get its files"}},
		{"failure", func(s *Snapshot) { s.Devices[2].Problem = 43 }, []string{"warning PCIROOT(0)#PCI(1B00) GPU is unhealthy"}},
		{"same failure", func(*Snapshot) {}, nil},
		{"recovery", func(s *Snapshot) { s.Devices[2].Problem = 0 }, []string{"info PCIROOT(0)#PCI(1B00) GPU is healthy again"}},
		{"note", func(s *Snapshot) { s.Devices[2].Unread = []error{errors.New("x")} }, []string{"info PCIROOT(0)#PCI(1B00) GPU note"}},
		{"other kind", func(s *Snapshot) { s.Adapters[1].D3D11Graphics, s.Adapters[1].D3D12Graphics = false, false }, []string{"info PCIROOT(0)#PCI(1B00) GPU kind changed"}},
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
