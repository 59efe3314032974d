package discovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// WithUUIDs returns source with the UUIDs of NVIDIA's GPUs in its lists. query asks the
// driver for those at the given PCI addresses, in the notation of NVML, and returns them by
// address. It may return those at other addresses, too.
//
// A GPU has the UUID at its address. A GPU whose address is unknown or not unique has a UUID
// only if it is the only GPU of NVIDIA and query returns one UUID.
//
// The query can take seconds or hang, and cannot be interrupted. So there is one for
// each GPU and start of its driver, a list waits for it for the given time at most, and a
// later one has the result. A failed query is repeated after a while.
func WithUUIDs(source Source, wait time.Duration, query func(busIDs []string) (map[string]string, error)) Source {
	return &uuidSource{Source: source, query: query, wait: wait, retry: 10 * time.Minute, results: map[gpuID]uuidResult{}}
}

type uuidSource struct {
	Source
	query       func(busIDs []string) (map[string]string, error)
	wait, retry time.Duration

	mu      sync.Mutex
	results map[gpuID]uuidResult
	// pending is closed when the current query ends, nil if there is none.
	pending chan struct{}
}

// gpuID identifies a GPU until its driver restarts, which changes the LUID.
type gpuID struct {
	instanceID string
	// busID is "" if it does not identify the GPU.
	busID string
	luid  LUID
}

type uuidResult struct {
	uuid string
	err  error
	at   time.Time
}

// Devices implements [Source].
func (u *uuidSource) Devices(ctx context.Context) ([]Device, error) {
	devices, err := u.Source.Devices(ctx)
	if err != nil {
		return devices, err
	}
	ids := identify(devices)
	if pending := u.startQuery(devices, ids); pending != nil && u.wait > 0 {
		timer := time.NewTimer(u.wait)
		defer timer.Stop()
		select {
		case <-pending:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, id := range ids {
		result := u.results[id] // None for the zero value.
		devices[i].UUID = result.uuid
		if result.err != nil && !errors.Is(result.err, errors.ErrUnsupported) {
			devices[i].Notes = append(slices.Clip(devices[i].Notes), fmt.Sprintf("its UUID is unknown: %q", result.err.Error()))
		}
	}
	return devices, nil
}

// startQuery starts a query for the healthy devices without a result and returns what is
// closed at its end. It returns nil if there is nothing to wait for: only the list
// that started a query waits.
func (u *uuidSource) startQuery(devices []Device, ids []gpuID) <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pending != nil {
		return nil
	}
	var unknown []gpuID
	var busIDs []string
	count := 0
	for i, id := range ids {
		if id == (gpuID{}) {
			continue
		}
		count++
		result, known := u.results[id]
		if !devices[i].IgnorePathProblem().Health.OK() || known && (result.uuid != "" || time.Since(result.at) <= u.retry) {
			continue
		}
		unknown = append(unknown, id)
		if id.busID != "" {
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
			if id.busID == "" && count == 1 && len(uuids) == 1 {
				for _, uuid := range uuids {
					result.uuid = uuid
				}
			}
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

// identify returns the identities of NVIDIA's GPUs among devices, the zero value for others.
func identify(devices []Device) []gpuID {
	ids, equal := make([]gpuID, len(devices)), map[string]int{}
	for i, d := range devices {
		if d.VendorID != VendorNVIDIA {
			continue
		}
		ids[i] = gpuID{instanceID: d.InstanceID, luid: d.LUID}
		if segment, bus, device, function, known := d.PCIAddress(); known {
			ids[i].busID = fmt.Sprintf("%08X:%02X:%02X.%X", segment, bus, device, function)
			equal[ids[i].busID]++
		}
	}
	for i := range ids {
		if equal[ids[i].busID] > 1 {
			ids[i].busID = ""
		}
	}
	return ids
}
