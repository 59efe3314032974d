package pnp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"directx-nri/discovery"
)

// WithUUIDs returns system with the UUIDs of NVIDIA's GPUs in its snapshots. query
// asks the driver for those at the given places on the PCI bus, in the notation of NVML,
// and returns them by place.
//
// The query can take seconds or hang, and cannot be interrupted. So there is one for
// each GPU and start of its driver, a snapshot waits for it a short time only, and a
// later one has the result. A failed query is repeated after a while.
func WithUUIDs(system System, query func(busIDs []string) (map[string]string, error)) System {
	return &uuidSystem{System: system, query: query, timeout: 3 * time.Second, retry: 10 * time.Minute, results: map[gpuID]uuidResult{}}
}

type uuidSystem struct {
	System
	query          func(busIDs []string) (map[string]string, error)
	timeout, retry time.Duration

	mu      sync.Mutex
	results map[gpuID]uuidResult
	// pending is closed when the current query ends, nil if there is none.
	pending chan struct{}
}

// gpuID identifies a GPU until its driver restarts, which changes the LUID.
type gpuID struct {
	instanceID, busID string
	luid              discovery.LUID
}

type uuidResult struct {
	uuid string
	err  error
	at   time.Time
}

// Snapshot implements [System].
func (u *uuidSystem) Snapshot(ctx context.Context) (Snapshot, error) {
	s, err := u.System.Snapshot(ctx)
	if err != nil {
		return s, err
	}
	if pending := u.startQuery(s.Devices); pending != nil {
		timer := time.NewTimer(u.timeout)
		defer timer.Stop()
		select {
		case <-pending:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range s.Devices {
		raw := &s.Devices[i]
		if id, ok := identify(*raw); ok {
			result := u.results[id]
			raw.UUID = result.uuid
			if result.err != nil && !errors.Is(result.err, errors.ErrUnsupported) {
				raw.Unread = append(raw.Unread, result.err)
			}
		}
	}
	return s, nil
}

// startQuery starts a query for the devices without a result and returns what is
// closed at its end. It returns nil if there is nothing to wait for: only the snapshot
// that started a query waits.
func (u *uuidSystem) startQuery(devices []Raw) <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pending != nil {
		return nil
	}
	var unknown []gpuID
	var busIDs []string
	for _, raw := range devices {
		id, ok := identify(raw)
		if !ok {
			continue
		}
		if result, known := u.results[id]; !known || result.uuid == "" && time.Since(result.at) > u.retry {
			unknown = append(unknown, id)
			busIDs = append(busIDs, id.busID)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	done := make(chan struct{})
	u.pending = done
	go func() { // It may never end.
		uuids, err := u.query(busIDs)
		u.mu.Lock()
		defer u.mu.Unlock()
		for _, id := range unknown {
			result := uuidResult{uuid: uuids[id.busID], at: time.Now()}
			if result.uuid == "" {
				result.err = err
			}
			u.results[id] = result
		}
		u.pending = nil
		close(done)
	}()
	return done
}

// identify returns the identity of a started NVIDIA GPU; ok is false for others.
func identify(raw Raw) (id gpuID, ok bool) {
	place := discovery.Device{BusNumber: raw.BusNumber, Address: raw.Address}
	segment, bus, device, function, known := place.PCIPlace()
	if !known || vendor(raw) != discovery.VendorNVIDIA || pnpProblem(raw) != "" {
		return gpuID{}, false
	}
	id = gpuID{instanceID: raw.InstanceID, busID: fmt.Sprintf("%08X:%02X:%02X.%X", segment, bus, device, function)}
	if raw.LUID != nil {
		id.luid = *raw.LUID
	}
	return id, true
}
