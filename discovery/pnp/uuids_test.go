package pnp

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"directx-nri/discovery"
)

const testUUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"

// listed is a [System] with fixed devices.
type listed struct {
	System
	devices []Raw
}

func (l listed) Snapshot(context.Context) (Snapshot, error) {
	return Snapshot{Devices: slices.Clone(l.devices), DXCoreErr: errNotQueried}, nil
}

func (l listed) Find(context.Context, []string) ([]Raw, error) { return l.devices, nil }

// nvidiaAt returns a started NVIDIA GPU on a bus.
func nvidiaAt(bus uint32) Raw {
	return Raw{
		InstanceID: `PCI\VEN_10DE&DEV_1EB8\` + string(rune('A'+bus)), BusNumber: &bus, Address: new(uint32),
		LUID: pointer(discovery.LUID(0xA0 + bus)), Status: statusStarted, DriverKey: "x",
	}
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

func uuidsOf(t *testing.T, s System) []string {
	t.Helper()
	snapshot, err := s.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, raw := range snapshot.Devices {
		list = append(list, raw.UUID)
	}
	return list
}

func TestUUIDsAreQueriedOnce(t *testing.T) {
	t.Parallel()
	amd, stopped, nowhere := nvidiaAt(3), nvidiaAt(4), nvidiaAt(5)
	amd.InstanceID = `PCI\VEN_1002&DEV_1\1`
	stopped.Status, stopped.Problem = 0, 22
	nowhere.BusNumber = nil
	devices := []Raw{nvidiaAt(0x1B), amd, stopped, nowhere}
	driver := &nvml{uuids: map[string]string{"00000000:1B:00.0": testUUID}}
	s := WithUUIDs(listed{devices: devices}, driver.query)
	for range 3 {
		if got := uuidsOf(t, s); !slices.Equal(got, []string{testUUID, "", "", ""}) {
			t.Errorf("UUIDs %q", got)
		}
	}
	if len(driver.queries) != 1 || !slices.Equal(driver.queries[0], []string{"00000000:1B:00.0"}) {
		t.Errorf("queries %q", driver.queries)
	}
	// The driver restarts, possibly with another card.
	devices[0].LUID = pointer(discovery.LUID(0xFFFF))
	driver.uuids = map[string]string{"00000000:1B:00.0": strings.ToUpper(testUUID)}
	if got := uuidsOf(t, s); got[0] != strings.ToUpper(testUUID) || len(driver.queries) != 2 {
		t.Errorf("after a restart: %q, queries %q", got, driver.queries)
	}
	if raws, err := s.Find(t.Context(), nil); err != nil || raws[0].UUID != "" || len(driver.queries) != 2 {
		t.Errorf("Find: %+v, %v", raws, err)
	}
}

func TestUnknownUUIDs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		note string
	}{
		"query fails":       {errors.New("NVML error 999"), "NVML error 999"},
		"no library":        {errors.ErrUnsupported, ""},
		"UUID of other GPU": {nil, ""},
	} {
		driver := &nvml{err: test.err, uuids: map[string]string{"00000000:00:00.0": testUUID}}
		s := WithUUIDs(listed{devices: []Raw{nvidiaAt(1)}}, driver.query)
		for range 2 {
			snapshot, err := s.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			d := Devices(snapshot)[0]
			notes := strings.Join(d.Notes, "; ")
			if d.UUID != "" || strings.Contains(notes, "NVML") != (test.note != "") || !strings.Contains(notes, test.note) {
				t.Errorf("%s: UUID %q, notes %q", name, d.UUID, notes)
			}
		}
		if len(driver.queries) != 1 {
			t.Errorf("%s: %d queries", name, len(driver.queries))
		}
		s.(*uuidSystem).retry = -1 //nolint:forcetypeassert // From WithUUIDs.
		if uuidsOf(t, s); len(driver.queries) != 2 {
			t.Errorf("%s: no retry", name)
		}
	}
}

// A driver that hangs delays one snapshot, and its result is not lost.
func TestSlowDriver(t *testing.T) {
	t.Parallel()
	driver := &nvml{uuids: map[string]string{"00000000:01:00.0": testUUID}, block: make(chan struct{})}
	slow, _ := WithUUIDs(listed{devices: []Raw{nvidiaAt(1)}}, driver.query).(*uuidSystem)
	slow.timeout = time.Millisecond
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
