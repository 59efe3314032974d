package nvidia

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

const testUUID, otherUUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-00000000-d72c-4106-c12f-20bd9faed9f6"

// nvidiaAt returns an NVIDIA GPU on a bus.
func nvidiaAt(bus uint32) discovery.Device {
	return discovery.Device{
		InstanceID: `PCI\` + string(rune('A'+bus)), VendorID: pci.VendorNVIDIA, BusNumber: &bus, Address: new(uint32), LUID: discovery.LUID(0xA0 + bus),
	}
}

// withoutAddress returns an NVIDIA GPU whose PCI address is unknown.
func withoutAddress() discovery.Device {
	return discovery.Device{InstanceID: "no address", VendorID: pci.VendorNVIDIA}
}

type fakeDriver struct {
	uuids   map[string]string
	err     error
	queries int
}

func (f *fakeDriver) query(context.Context, []discovery.Device) (map[string]string, error) {
	f.queries++
	return f.uuids, f.err
}

// uuidsOf returns the UUIDs that u adds to a list of devices.
func uuidsOf(t *testing.T, u *UUIDs, devices []discovery.Device) (list []string) {
	t.Helper()
	devices = slices.Clone(devices)
	testutil.NoError(t, u.Add(t.Context(), devices))
	for _, d := range devices {
		list = append(list, d.UUID)
	}
	return list
}

func TestAssign(t *testing.T) {
	t.Parallel()
	moved := nvidiaAt(1)
	moved.InstanceID = "moved"
	amd := nvidiaAt(3)
	amd.VendorID = pci.VendorAMD
	const first, second = "00000000:01:00.0", "00000000:02:00.0"
	for name, test := range map[string]struct {
		devices []discovery.Device
		uuids   map[string]string
		want    []string
	}{
		"two":                 {[]discovery.Device{nvidiaAt(1), nvidiaAt(2)}, map[string]string{second: otherUUID, first: testUUID}, []string{testUUID, otherUUID}},
		"beside another GPU":  {[]discovery.Device{amd, nvidiaAt(1)}, map[string]string{first: testUUID, "00000000:03:00.0": otherUUID}, []string{"", testUUID}},
		"no address":          {[]discovery.Device{withoutAddress()}, map[string]string{second: testUUID}, []string{testUUID}},
		"one of two":          {[]discovery.Device{withoutAddress(), nvidiaAt(1)}, map[string]string{second: testUUID}, []string{"", ""}},
		"two for one":         {[]discovery.Device{withoutAddress()}, map[string]string{second: testUUID, "00000000:03:00.0": otherUUID}, []string{""}},
		"another address":     {[]discovery.Device{nvidiaAt(1)}, map[string]string{second: testUUID}, []string{""}},
		"at the same address": {[]discovery.Device{nvidiaAt(1), moved}, map[string]string{first: testUUID}, []string{"", ""}},
	} {
		driver := &fakeDriver{uuids: test.uuids}
		if got := uuidsOf(t, &UUIDs{query: driver.query}, test.devices); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// A query runs for what is new only, and an unknown UUID is retried.
func TestQueries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		failing := nvidiaAt(4)
		failing.Health.Reason = "stopped"
		devices := []discovery.Device{nvidiaAt(1), failing}
		driver := &fakeDriver{uuids: map[string]string{"00000000:01:00.0": testUUID}}
		u := &UUIDs{query: driver.query}
		for _, step := range []struct {
			name   string
			change func()
			want   []string
			more   int // queries
		}{
			{"first list", func() {}, []string{testUUID, ""}, 1},
			{"nothing is new", func() { time.Sleep(time.Hour) }, []string{testUUID, ""}, 0},
			{"a GPU recovers", func() { devices[1].Health.Reason, driver.err = "", errors.New("failed") }, []string{testUUID, ""}, 1},
			{"no retry yet", func() { time.Sleep(retryInterval / 2) }, []string{testUUID, ""}, 0},
			{"retry", func() {
				time.Sleep(retryInterval)
				driver.uuids, driver.err = map[string]string{"00000000:04:00.0": otherUUID}, nil
			}, []string{testUUID, otherUUID}, 1},
			{"the driver has restarted, with another card", func() { devices[0].LUID++; driver.uuids["00000000:01:00.0"] = "GPU-1" }, []string{"GPU-1", otherUUID}, 1},
		} {
			step.change()
			before := driver.queries
			got := uuidsOf(t, u, devices)
			if more := driver.queries - before; !slices.Equal(got, step.want) || more != step.more {
				t.Errorf("%s: %q after %d queries, want %q after %d", step.name, got, more, step.want, step.more)
			}
		}
	})
}

// The first list waits for a slow driver for its time limit, and the second one as long as it takes.
func TestSlowDriver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for limit, wants := range map[time.Duration][]string{time.Second: {"", testUUID}, 0: {testUUID, testUUID}} {
			u := &UUIDs{firstTimeout: limit, query: func(ctx context.Context, _ []discovery.Device) (map[string]string, error) {
				select {
				case <-time.After(3 * time.Second):
					return map[string]string{"00000000:01:00.0": testUUID}, nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}}
			for i, want := range wants {
				begin := time.Now()
				got := uuidsOf(t, u, []discovery.Device{nvidiaAt(1)})
				if took := time.Since(begin); got[0] != want || i == 0 && took != cmp.Or(limit, 3*time.Second) {
					t.Errorf("limit %s: list %d has UUID %q after %s", limit, i, got[0], took)
				}
			}
		}
	})
}

func TestUnknownUUIDs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		note string
	}{
		"query fails":   {errors.New("exit\nstatus 9"), `exit\nstatus 9`},
		"no nvidia-smi": {errors.ErrUnsupported, ""},
	} {
		driver := &fakeDriver{err: test.err}
		d := nvidiaAt(1)
		d.Notes = make([]string, 0, 1)
		u := &UUIDs{query: driver.query}
		for range 2 {
			devices := []discovery.Device{d}
			testutil.NoError(t, u.Add(t.Context(), devices))
			notes := strings.Join(devices[0].Notes, "; ")
			if devices[0].UUID != "" || (notes != "") != (test.note != "") || !strings.Contains(notes, test.note) {
				t.Errorf("%s: UUID %q, notes %q", name, devices[0].UUID, notes)
			}
		}
		if d.Notes[:1][0] != "" {
			t.Errorf("%s: the source's own notes are %q", name, d.Notes[:1])
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	u := &UUIDs{query: func(context.Context, []discovery.Device) (map[string]string, error) {
		cancel()
		return nil, ctx.Err()
	}}
	if err := u.Add(ctx, []discovery.Device{nvidiaAt(1)}); !errors.Is(err, context.Canceled) {
		t.Errorf("UUIDs were not queried because the context ended: %v", err)
	}
}
