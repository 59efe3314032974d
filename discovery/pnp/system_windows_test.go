package pnp

import (
	"context"
	"errors"
	"testing"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestReadSnapshot(t *testing.T) {
	t.Parallel()
	all, err := readSnapshot(t.Context(), isAny, true)
	testutil.NoError(t, err)
	if all.DXCoreErr != nil {
		t.Log(all.DXCoreErr)
	}
	for _, d := range all.Devices {
		if d.InstanceID == "" {
			t.Errorf("no identity: %+v", d)
		}
		found, err := readSnapshot(t.Context(), func(id string) bool { return id == d.InstanceID }, false)
		if err != nil || len(found.Devices) != 1 || found.Devices[0].InstanceID != d.InstanceID {
			t.Errorf("%s is found as %+v, %v", d.InstanceID, found.Devices, err)
		}
	}
}

func TestEndedContextEndsASnapshot(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := readSnapshot(ctx, isAny, true); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// It does not run in parallel because the handles of other tests would count.
//
//nolint:paralleltest // See above.
func TestSnapshotsKeepNoHandles(t *testing.T) {
	round := func() {
		if _, err := readSnapshot(t.Context(), isAny, true); err != nil {
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
