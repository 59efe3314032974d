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

// listed is a Windows with these devices.
type listed struct {
	System
	devices func() []Raw
}

func (l listed) Snapshot(context.Context) (Snapshot, error) {
	return Snapshot{Devices: l.devices(), DXCoreErr: errNotAsked}, nil
}

func (l listed) Find(context.Context, []string) ([]Raw, error) { return l.devices(), nil }

// nvidiaAt returns a GPU of NVIDIA's that runs, on a bus.
func nvidiaAt(bus uint32) Raw {
	address, luid := uint32(0), discovery.LUID(0xA0+bus)
	return Raw{
		InstanceID: `PCI\VEN_10DE&DEV_1EB8\` + string(rune('A'+bus)), BusNumber: &bus, Address: &address,
		LUID: &luid, Status: statusStarted, DriverKey: "x",
	}
}

// nvml counts what it is asked for.
type nvml struct {
	mu    sync.Mutex
	asked [][]string
	uuids map[string]string
	err   error
	block chan struct{}
}

func (n *nvml) ask(busIDs []string) (map[string]string, error) {
	if n.block != nil {
		<-n.block
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, busIDs)
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

func TestUUIDsAreAskedForOnce(t *testing.T) {
	t.Parallel()
	amd := nvidiaAt(3)
	amd.InstanceID = `PCI\VEN_1002&DEV_1\1`
	stopped := nvidiaAt(4)
	stopped.Status, stopped.Problem = 0, 22
	nowhere := nvidiaAt(5)
	nowhere.BusNumber = nil
	devices := []Raw{nvidiaAt(0x1B), amd, stopped, nowhere}
	driver := &nvml{uuids: map[string]string{"00000000:1B:00.0": testUUID}}
	s := WithUUIDs(listed{devices: func() []Raw { return slices.Clone(devices) }}, driver.ask)
	for range 3 {
		if got := uuidsOf(t, s); !slices.Equal(got, []string{testUUID, "", "", ""}) {
			t.Errorf("UUIDs %q", got)
		}
	}
	if len(driver.asked) != 1 || !slices.Equal(driver.asked[0], []string{"00000000:1B:00.0"}) {
		t.Errorf("the driver was asked for %q", driver.asked)
	}
	// The driver was started again, maybe with another card in this place.
	luid := discovery.LUID(0xFFFF)
	devices[0].LUID = &luid
	driver.uuids = map[string]string{"00000000:1B:00.0": strings.ToUpper(testUUID)}
	if got := uuidsOf(t, s); got[0] != strings.ToUpper(testUUID) || len(driver.asked) != 2 {
		t.Errorf("after a new start: %q, asked %q", got, driver.asked)
	}
	// Single devices are looked up at each container's start: no driver is asked.
	if raws, err := s.Find(t.Context(), nil); err != nil || raws[0].UUID != "" || len(driver.asked) != 2 {
		t.Errorf("found %+v, %v", raws, err)
	}
}

func TestUUIDsThatAreNotKnown(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		note string
	}{
		"the driver does not say":    {errors.New("NVML error 999"), "NVML error 999"},
		"there is no such library":   {errors.ErrUnsupported, ""},
		"an answer for other places": {nil, ""},
	} {
		driver := &nvml{err: test.err, uuids: map[string]string{"00000000:00:00.0": testUUID}}
		s := WithUUIDs(listed{devices: func() []Raw { return []Raw{nvidiaAt(1)} }}, driver.ask)
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
		if len(driver.asked) != 1 {
			t.Errorf("%s: the driver was asked %d times", name, len(driver.asked))
		}
		identified, _ := s.(*identified)
		identified.again = 0
		if uuidsOf(t, s); len(driver.asked) != 2 {
			t.Errorf("%s: the driver is not asked again later", name)
		}
	}
}

// A driver that hangs delays one snapshot and no other, and what it says in the end
// is not lost.
func TestSlowDriverIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	driver := &nvml{uuids: map[string]string{"00000000:01:00.0": testUUID}, block: make(chan struct{})}
	s := WithUUIDs(listed{devices: func() []Raw { return []Raw{nvidiaAt(1)} }}, driver.ask)
	slow, _ := s.(*identified)
	slow.patience = time.Millisecond
	for range 3 {
		if got := uuidsOf(t, s); got[0] != "" {
			t.Errorf("UUIDs %q before the driver has answered", got)
		}
	}
	slow.mu.Lock()
	asking := slow.asking
	slow.mu.Unlock()
	close(driver.block)
	<-asking
	if got := uuidsOf(t, s); got[0] != testUUID || len(driver.asked) != 1 {
		t.Errorf("UUIDs %q, asked %q", got, driver.asked)
	}
}
