package discovery

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const testUUID, otherUUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-00000000-d72c-4106-c12f-20bd9faed9f6"

// nvidiaAt returns an NVIDIA GPU on a bus.
func nvidiaAt(bus uint32) Device {
	return Device{InstanceID: `PCI\` + string(rune('A'+bus)), VendorID: VendorNVIDIA, BusNumber: &bus, Address: new(uint32), LUID: LUID(0xA0 + bus)}
}

// nowhere returns an NVIDIA GPU whose place is unknown.
func nowhere() Device {
	return Device{InstanceID: "nowhere", VendorID: VendorNVIDIA}
}

// nvml records queries.
type nvml struct {
	mu      sync.Mutex
	queries [][]string
	uuids   map[string]string
	err     error
	block   chan struct{}
}

func (n *nvml) query(busIDs []string) (map[string]string, error) {
	if n.block != nil {
		<-n.block
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queries = append(n.queries, busIDs)
	return n.uuids, n.err
}

func uuidsOf(t *testing.T, s Source) []string {
	t.Helper()
	devices, err := s.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, d := range devices {
		list = append(list, d.UUID)
	}
	return list
}

func TestUUIDsAreQueriedOnce(t *testing.T) {
	t.Parallel()
	amd, failing := nvidiaAt(3), nvidiaAt(4)
	amd.VendorID = VendorAMD
	failing.Health.Reason = "stopped"
	devices := Static{nvidiaAt(0x1B), amd, failing, nowhere()}
	driver := &nvml{uuids: map[string]string{"00000000:1B:00.0": testUUID}}
	s := WithUUIDs(devices, time.Minute, driver.query)
	for range 3 {
		if got := uuidsOf(t, s); !slices.Equal(got, []string{testUUID, "", "", ""}) {
			t.Errorf("UUIDs %q", got)
		}
	}
	if len(driver.queries) != 1 || !slices.Equal(driver.queries[0], []string{"00000000:1B:00.0"}) {
		t.Errorf("queries %q", driver.queries)
	}
	// The driver restarts, possibly with another card.
	devices[0].LUID = 0xFFFF
	driver.uuids = map[string]string{"00000000:1B:00.0": otherUUID}
	if got := uuidsOf(t, s); got[0] != otherUUID || len(driver.queries) != 2 {
		t.Errorf("after a restart: %q, queries %q", got, driver.queries)
	}
	if found, err := s.Find(t.Context(), []string{devices[0].InstanceID}); err != nil || found[0].UUID != "" || len(driver.queries) != 2 {
		t.Errorf("Find: %+v, %v", found, err)
	}
}

func TestUUIDPlaces(t *testing.T) {
	t.Parallel()
	moved := nvidiaAt(1)
	moved.InstanceID = "moved"
	for name, test := range map[string]struct {
		devices Static
		uuids   map[string]string
		want    []string
	}{
		"two":               {Static{nvidiaAt(1), nvidiaAt(2)}, map[string]string{"00000000:02:00.0": otherUUID, "00000000:01:00.0": testUUID}, []string{testUUID, otherUUID}},
		"only one":          {Static{nowhere()}, map[string]string{"00000000:02:00.0": testUUID}, []string{testUUID}},
		"one of two":        {Static{nowhere(), nvidiaAt(1)}, map[string]string{"00000000:02:00.0": testUUID}, []string{"", ""}},
		"two for one":       {Static{nowhere()}, map[string]string{"00000000:02:00.0": testUUID, "00000000:03:00.0": otherUUID}, []string{""}},
		"another place":     {Static{nvidiaAt(1)}, map[string]string{"00000000:02:00.0": testUUID}, []string{""}},
		"at the same place": {Static{nvidiaAt(1), moved}, map[string]string{"00000000:01:00.0": testUUID}, []string{"", ""}},
	} {
		driver := &nvml{uuids: test.uuids}
		if got := uuidsOf(t, WithUUIDs(test.devices, time.Minute, driver.query)); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestUnknownUUIDs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		note string
	}{
		"query fails": {errors.New("NVML\nerror 999"), `NVML\nerror 999`},
		"no library":  {errors.ErrUnsupported, ""},
	} {
		driver := &nvml{err: test.err}
		d := nvidiaAt(1)
		d.Notes = make([]string, 0, 1)
		s := WithUUIDs(Static{d}, time.Minute, driver.query)
		for range 2 {
			devices, err := s.Devices(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			notes := strings.Join(devices[0].Notes, "; ")
			if devices[0].UUID != "" || (notes != "") != (test.note != "") || !strings.Contains(notes, test.note) {
				t.Errorf("%s: UUID %q, notes %q", name, devices[0].UUID, notes)
			}
		}
		if len(driver.queries) != 1 || d.Notes[:1][0] != "" {
			t.Errorf("%s: %d queries, and the source's own notes are %q", name, len(driver.queries), d.Notes[:1])
		}
		s.(*uuidSource).retry = -1 //nolint:forcetypeassert // From WithUUIDs.
		if uuidsOf(t, s); len(driver.queries) != 2 {
			t.Errorf("%s: no retry", name)
		}
	}
	broken := errors.New("broken")
	if _, err := WithUUIDs(failing{err: broken}, 0, nil).Devices(t.Context()); !errors.Is(err, broken) {
		t.Error(err)
	}
}

// failing is a source without devices.
type failing struct {
	Static
	err error
}

func (f failing) Devices(context.Context) ([]Device, error) { return nil, f.err }

// A driver that hangs delays one list, if any, and its result is not lost.
func TestSlowDriver(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{0, time.Millisecond} {
		driver := &nvml{uuids: map[string]string{"00000000:01:00.0": testUUID}, block: make(chan struct{})}
		slow, _ := WithUUIDs(Static{nvidiaAt(1)}, wait, driver.query).(*uuidSource)
		for range 3 {
			if got := uuidsOf(t, slow); got[0] != "" {
				t.Errorf("UUIDs %q before the query has ended", got)
			}
		}
		slow.mu.Lock()
		pending := slow.pending
		slow.mu.Unlock()
		close(driver.block)
		<-pending
		if got := uuidsOf(t, slow); got[0] != testUUID || len(driver.queries) != 1 {
			t.Errorf("UUIDs %q, queries %q", got, driver.queries)
		}
	}
}
