package pnp

import (
	"context"
	"errors"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/win32"
)

func TestFindReadsWhatSnapshotReads(t *testing.T) {
	t.Parallel()
	system := NewSystem()
	all, err := system.Snapshot(t.Context())
	testutil.NoError(t, err)
	if all.DXCoreErr != nil {
		t.Log(all.DXCoreErr)
	}
	ids := []string{`PCI\VEN_FFFF&DEV_FFFF\NOT-THERE`}
	for _, d := range all.Devices {
		if d.InstanceID == "" || d.Class == (win32.GUID{}) {
			t.Errorf("no identity: %+v", d)
		}
		t.Logf("%s: %d values, %v", d.InstanceID, len(d.Values), d.ReadErrors)
		ids = append(ids, strings.ToLower(d.InstanceID))
	}
	found, err := system.Find(t.Context(), ids)
	if err != nil || len(found) != len(all.Devices) {
		t.Fatalf("%d devices found, %d listed, %v", len(found), len(all.Devices), err)
	}
	for i := range found {
		if found[i].InstanceID != all.Devices[i].InstanceID {
			t.Errorf("found %s, listed %s", found[i].InstanceID, all.Devices[i].InstanceID)
		}
	}
	if found, err := system.Find(t.Context(), ids[:1]); err != nil || len(found) > 0 {
		t.Errorf("found a missing device: %v, %v", found, err)
	}
	if found, err := system.Find(t.Context(), nil); err != nil || len(found) > 0 {
		t.Errorf("found without instance IDs: %v, %v", found, err)
	}
}

func TestEndedContextEndsASnapshot(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := NewSystem().Snapshot(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// It does not run in parallel because the handles of other tests would count.
//
//nolint:paralleltest // See above.
func TestSnapshotsKeepNoHandles(t *testing.T) {
	system := NewSystem()
	round := func() {
		if _, err := system.Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 { // Loads what is loaded once.
		round()
	}
	before := handles(t)
	for range 500 {
		round()
	}
	if after := handles(t); after > before+50 {
		t.Errorf("%d handles, and %d after 500 rounds", before, after)
	}
}

// handles returns the number of open handles.
// https://learn.microsoft.com/windows/win32/api/processthreadsapi/nf-processthreadsapi-getprocesshandlecount
func handles(t *testing.T) uint32 {
	t.Helper()
	var n uint32
	ok, _, err := windows.NewLazySystemDLL("kernel32.dll").NewProc("GetProcessHandleCount").Call(uintptr(windows.CurrentProcess()), uintptr(unsafe.Pointer(&n)))
	if ok == 0 {
		t.Fatal(err)
	}
	return n
}
