package pnp

import (
	"context"
	"errors"
	"sync"
	"time"

	"directx-nri/discovery"
	"directx-nri/internal/win32"
)

// WithUUIDs returns system with the UUIDs of NVIDIA's GPUs in its snapshots. ask
// asks the driver for those at places on the PCI bus, as [win32.NVMLBusID] writes
// them, and returns them by their place.
//
// A driver may take seconds to answer, or hang, and cannot be interrupted. So it is
// asked once for each GPU and start of its driver, a snapshot does not wait for
// long, and a later one has what came in the meantime. A GPU for which there is no
// answer is asked for again after a while.
func WithUUIDs(system System, ask func(busIDs []string) (map[string]string, error)) System {
	return &identified{System: system, ask: ask, patience: 3 * time.Second, again: 10 * time.Minute, answers: map[identity]answer{}}
}

type identified struct {
	System
	ask             func(busIDs []string) (map[string]string, error)
	patience, again time.Duration

	mu      sync.Mutex
	answers map[identity]answer
	// asking is closed when the driver has answered, nil when it is not asked.
	asking chan struct{}
}

// identity is a GPU from one start of its driver to the next, which gives it
// another LUID.
type identity struct {
	instanceID, busID string
	luid              discovery.LUID
}

type answer struct {
	uuid string
	// err is why there is none.
	err error
	at  time.Time
}

// Snapshot implements [System].
func (i *identified) Snapshot(ctx context.Context) (Snapshot, error) {
	s, err := i.System.Snapshot(ctx)
	if err != nil {
		return s, err
	}
	if asking := i.askFor(s.Devices); asking != nil {
		timer := time.NewTimer(i.patience)
		defer timer.Stop()
		select {
		case <-asking:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for n := range s.Devices {
		id, ok := identify(s.Devices[n])
		if !ok {
			continue
		}
		a := i.answers[id]
		s.Devices[n].UUID = a.uuid
		if a.err != nil && !errors.Is(a.err, errors.ErrUnsupported) {
			s.Devices[n].Unread = append(s.Devices[n].Unread, a.err)
		}
	}
	return s, nil
}

// askFor has the driver asked for those of devices that are not known, unless it is
// being asked, and returns what is closed when it has answered, nil when nothing is
// to be waited for.
func (i *identified) askFor(devices []Raw) <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.asking != nil {
		// The first who asked has waited.
		return nil
	}
	var unknown []identity
	for _, raw := range devices {
		id, ok := identify(raw)
		if !ok {
			continue
		}
		if a, known := i.answers[id]; !known || a.uuid == "" && time.Since(a.at) > i.again {
			unknown = append(unknown, id)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	done := make(chan struct{})
	i.asking = done
	// Nobody can wait for it to end, as it may not: there is one at most.
	go func() {
		busIDs := make([]string, len(unknown))
		for n, id := range unknown {
			busIDs[n] = id.busID
		}
		uuids, err := i.ask(busIDs)
		i.mu.Lock()
		defer i.mu.Unlock()
		for _, id := range unknown {
			a := answer{uuid: uuids[id.busID], at: time.Now()}
			if a.uuid == "" {
				a.err = err
			}
			i.answers[id] = a
		}
		i.asking = nil
		close(done)
	}()
	return done
}

// identify returns who raw is to its driver; ok is false for what is no GPU of
// NVIDIA's that runs.
func identify(raw Raw) (id identity, ok bool) {
	place := discovery.Device{BusNumber: raw.BusNumber, Address: raw.Address}
	segment, bus, device, function, known := place.PCIPlace()
	if !known || vendor(raw) != discovery.VendorNVIDIA || unable(raw) != "" {
		return identity{}, false
	}
	id = identity{instanceID: raw.InstanceID, busID: win32.NVMLBusID(segment, bus, device, function)}
	if raw.LUID != nil {
		id.luid = *raw.LUID
	}
	return id, true
}
