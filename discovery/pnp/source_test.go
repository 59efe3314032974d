package pnp

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/win32"
)

func TestDevicesByID(t *testing.T) {
	t.Parallel()
	system := &fakeSystem{snapshot: node(4)}
	source := newSource(system.read)
	id := t4(2).InstanceID
	devices, err := source.Devices(t.Context(), strings.ToLower(id), `PCI\VEN_10DE&DEV_1\GONE`)
	if err != nil || len(devices) != 1 || devices[0].InstanceID != id || system.queries != 0 {
		t.Fatalf("%+v, %v, %d queries of DXCore", devices, err, system.queries)
	}
	// Nothing is cached: neither the driver's files nor the last good list.
	system.snapshot.Devices[4].PackageDir = `C:\new`
	system.snapshot.Devices[4].Values = []win32.RegistryValue{multi("", "UserModeDriverName", `C:\x.dll`), multi("CopyToVmOverwrite", "a", "new.dll")}
	if devices, err = source.Devices(t.Context(), id); err != nil || devices[0].DriverStorePath != `C:\new` || devices[0].System32[0].Source != "new.dll" {
		t.Errorf("%+v, %v", devices, err)
	}
	system.err = errors.New("access is denied")
	_, err = source.Devices(t.Context(), id)
	testutil.CheckError(t, "find", err, "access is denied")
}

// With and without IDs, the source agrees on whether a device can be used, and on its files.
func TestDevicesForAContainer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		p Properties
		// other has the only adapter instead of the device.
		other, healthy bool
		queries        int
	}{
		"complete":            {p: gpu(func(*Properties) {}), healthy: true},
		"no user-mode driver": {p: gpu(func(r *Properties) { r.Values = nil }), healthy: true, queries: 1},
		"no LUID":             {p: gpu(func(r *Properties) { r.LUID = 0 }), healthy: true, queries: 1},
		"no location path":    {p: gpu(func(r *Properties) { r.LocationPaths = nil }), healthy: true, queries: 1},
		"compute class":       {p: gpu(func(r *Properties) { r.ComputeClass = true }), healthy: true},

		"Windows' own driver": {p: gpu(func(r *Properties) { r.Values = nil; r.LUID = 0xFB }), other: true, queries: 1},
		"frame buffer":        {p: frameBuffer(), other: true, queries: 1},
		"disabled":            {p: gpu(func(r *Properties) { r.Problem = 22 }), other: true},
		"unread files":        {p: gpu(func(r *Properties) { r.ValuesErr = errors.New("access is denied") }), other: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			snapshot := Snapshot{Devices: []Properties{test.p}, Adapters: []win32.Adapter{full(t4(0).LUID)}}
			if test.other {
				snapshot = Snapshot{Devices: []Properties{test.p, t4(1)}, Adapters: []win32.Adapter{full(t4(1).LUID)}}
			}
			system := &fakeSystem{snapshot: snapshot}
			source := newSource(system.read)
			all, err := source.Devices(t.Context())
			testutil.NoError(t, err)
			listed, _ := discovery.Find(all, test.p.InstanceID)
			some, err := source.Devices(t.Context(), strings.ToLower(test.p.InstanceID))
			found, ok := discovery.Find(some, test.p.InstanceID)
			if err != nil || !ok {
				t.Fatalf("%+v, %v", some, err)
			}
			if listed.Health.OK() != test.healthy || found.Health.OK() != test.healthy || test.healthy && found.Kind() == discovery.KindNone {
				t.Errorf("listed as %s, found as %s, %s", listed.Health, found.Health, found.Kind())
			}
			if n := system.queries; n-1 != test.queries {
				t.Errorf("%d queries of DXCore, want %d", n-1, test.queries)
			}
			if diff := cmp.Diff(listed.System32, found.System32); diff != "" || listed.DriverStorePath != found.DriverStorePath || listed.LocationPath != found.LocationPath {
				t.Errorf("found %+v; files: %s", found, diff)
			}
		})
	}
}
