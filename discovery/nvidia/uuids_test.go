package nvidia

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

const (
	testUUID, otherUUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-00000000-d72c-4106-c12f-20bd9faed9f6"
	first, second       = "00000000:01:00.0", "00000000:02:00.0"
)

// nvidiaAt returns an NVIDIA GPU on a bus.
func nvidiaAt(bus uint32) discovery.Device {
	return discovery.Device{
		InstanceID: `PCI\` + string(rune('A'+bus)), VendorID: pci.VendorNVIDIA, BusNumber: &bus, Address: new(uint32), LUID: discovery.LUID(0xA0 + bus),
	}
}

type fakeSMI struct {
	uuids   map[string]string
	err     error
	queries int
}

func (f *fakeSMI) query(context.Context, []discovery.Device) (map[string]string, error) {
	f.queries++
	return f.uuids, f.err
}

// uuidsOf returns the UUIDs that u adds to a list of devices.
func uuidsOf(t *testing.T, u *UUIDs, devices ...discovery.Device) (list []string) {
	t.Helper()
	testutil.NoError(t, u.Add(t.Context(), devices))
	for _, d := range devices {
		list = append(list, d.UUID)
	}
	return list
}

func TestAssign(t *testing.T) {
	t.Parallel()
	moved, amd, withoutAddress := nvidiaAt(1), nvidiaAt(3), nvidiaAt(4)
	moved.InstanceID, amd.VendorID, withoutAddress.Address = "moved", pci.VendorAMD, nil
	for name, test := range map[string]struct {
		devices []discovery.Device
		want    []string
	}{
		"two":                 {[]discovery.Device{nvidiaAt(2), amd, nvidiaAt(1)}, []string{otherUUID, "", testUUID}},
		"the only one":        {[]discovery.Device{amd, nvidiaAt(1)}, []string{"", ""}},
		"no address":          {[]discovery.Device{withoutAddress, nvidiaAt(1)}, []string{"", testUUID}},
		"at the same address": {[]discovery.Device{nvidiaAt(1), moved}, []string{"", ""}},
	} {
		smi := &fakeSMI{uuids: map[string]string{second: otherUUID, first: testUUID, "00000000:03:00.0": "GPU-3"}}
		if got := uuidsOf(t, &UUIDs{query: smi.query, uuids: map[string]string{}}, test.devices...); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// A query runs for what is new only, and an unknown UUID is retried.
func TestQueries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		failing := nvidiaAt(2)
		failing.Health.Reason = "stopped"
		devices := []discovery.Device{nvidiaAt(1), failing}
		smi := &fakeSMI{uuids: map[string]string{first: testUUID}}
		u := &UUIDs{query: smi.query, uuids: map[string]string{}}
		for _, step := range []struct {
			name   string
			change func()
			want   []string
			more   int // queries
		}{
			{"first list", func() {}, []string{testUUID, ""}, 1},
			{"nothing is new", func() { time.Sleep(time.Hour) }, []string{testUUID, ""}, 0},
			{"a GPU recovers", func() { devices[1].Health.Reason, smi.err = "", errors.New("failed") }, []string{testUUID, ""}, 1},
			{"no retry yet", func() { time.Sleep(retryInterval / 2) }, []string{testUUID, ""}, 0},
			{"retry", func() {
				time.Sleep(retryInterval)
				smi.uuids, smi.err = map[string]string{second: otherUUID}, nil
			}, []string{testUUID, otherUUID}, 1},
			{"the driver has restarted, with another card", func() { devices[0].LUID++; smi.uuids[first] = "GPU-1" }, []string{"GPU-1", otherUUID}, 1},
		} {
			step.change()
			before := smi.queries
			got := uuidsOf(t, u, slices.Clone(devices)...)
			if more := smi.queries - before; !slices.Equal(got, step.want) || more != step.more {
				t.Errorf("%s: %q after %d queries, want %q after %d", step.name, got, more, step.want, step.more)
			}
		}
	})
}

func TestUnknownUUIDs(t *testing.T) {
	t.Parallel()
	u := &UUIDs{query: (&fakeSMI{err: errors.New("exit\nstatus 9")}).query, uuids: map[string]string{}}
	notes := make([]string, 0, 1)
	for range 2 {
		devices := []discovery.Device{nvidiaAt(1), nvidiaAt(2)}
		devices[0].Notes = notes
		testutil.NoError(t, u.Add(t.Context(), devices))
		for _, d := range devices {
			if want := []string{`its UUID is unknown: "exit status 9"`}; d.UUID != "" || !slices.Equal(d.Notes, want) {
				t.Errorf("UUID %q, notes %q", d.UUID, d.Notes)
			}
		}
	}
	if notes[:1][0] != "" {
		t.Errorf("the source's own notes are %q", notes[:1])
	}
	ctx, cancel := context.WithCancel(t.Context())
	u = &UUIDs{uuids: map[string]string{}, query: func(context.Context, []discovery.Device) (map[string]string, error) {
		cancel()
		return nil, ctx.Err()
	}}
	if err := u.Add(ctx, []discovery.Device{nvidiaAt(1), nvidiaAt(2)}); !errors.Is(err, context.Canceled) {
		t.Errorf("UUIDs were not queried because the context ended: %v", err)
	}
}

// TestQueryThatCannotBeKilled: the GPUs are listed, and no second nvidia-smi runs.
func TestQueryThatCannotBeKilled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hang, queries := make(chan struct{}), 0
		u := NewUUIDs("")
		u.query = func(context.Context, []discovery.Device) (map[string]string, error) {
			queries++
			<-hang
			return nil, nil
		}
		for range 3 {
			uuidsOf(t, u, nvidiaAt(1), nvidiaAt(2))
			time.Sleep(retryInterval)
		}
		close(hang)
		if synctest.Wait(); queries != 1 {
			t.Errorf("%d queries", queries)
		}
	})
}
