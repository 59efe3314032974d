// Package nvidia adds the UUIDs of NVIDIA's GPUs to the lists of a source, as nvidia-smi
// reports them.
package nvidia

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/directx-nri/directx-nri/discovery"
)

const (
	// maxWait is how long a call of Devices waits for nvidia-smi.
	maxWait = time.Second
	// retryInterval is the time after which an unknown UUID is queried again.
	retryInterval = time.Minute
)

// WithUUIDs returns source with the UUIDs of NVIDIA's GPUs in its lists. [discovery.Source.Find] and
// At do not add them.
//
// nvidia-smi can take seconds, so Devices does not wait long for it. When nvidia-smi reports other
// UUIDs later, Watch calls changed. nvidia-smi runs for GPUs that are new, for GPUs whose driver has
// restarted, and again after a minute for GPUs whose UUID it did not report.
//
// hostRoot is where the node's root directory is mounted, for a program in a container on
// Linux, otherwise "".
func WithUUIDs(source discovery.Source, hostRoot string) discovery.Source {
	return newSource(source, func(gpus []discovery.Device) (map[string]string, error) { return query(hostRoot, gpus) })
}

type source struct {
	discovery.Source
	// query returns UUIDs by PCI address, and an error if some are missing.
	query func(gpus []discovery.Device) (map[string]string, error)

	mu sync.Mutex
	// uuids is the result of the last query by [key], with "" for unknown UUIDs.
	uuids map[string]string
	err   error // of the last query
	// running is closed when the running query ends, nil if there is none.
	running chan struct{}
	retryAt time.Time

	// watchMu guards changed, and keeps it from being called concurrently.
	watchMu sync.Mutex
	changed func() // the argument of Watch
}

func newSource(s discovery.Source, query func([]discovery.Device) (map[string]string, error)) *source {
	return &source{Source: s, query: query, changed: func() {}}
}

// key identifies a GPU until its driver restarts, which changes the LUID.
func key(d discovery.Device) string { return d.InstanceID + d.LUID.String() }

// Devices implements [discovery.Source].
func (s *source) Devices(ctx context.Context) ([]discovery.Device, error) {
	devices, err := s.Source.Devices(ctx)
	if err != nil {
		return devices, err
	}
	if ended := s.startQuery(devices); ended != nil {
		select {
		case <-ended:
		case <-time.After(maxWait):
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, d := range devices {
		uuid, queried := s.uuids[key(d)]
		devices[i].UUID = uuid
		if queried && uuid == "" && s.err != nil && !errors.Is(s.err, errors.ErrUnsupported) {
			devices[i].Notes = append(slices.Clip(d.Notes), fmt.Sprintf("its UUID is unknown: %q", s.err.Error()))
		}
	}
	return devices, nil
}

// startQuery starts a query if a healthy GPU needs one and none is running. It returns a channel
// that is closed at its end, nil if it did not start one.
func (s *source) startQuery(devices []discovery.Device) <-chan struct{} {
	gpus := slices.DeleteFunc(slices.Clone(devices), func(d discovery.Device) bool { return d.VendorID != discovery.VendorNVIDIA })
	s.mu.Lock()
	defer s.mu.Unlock()
	isDue := func(d discovery.Device) bool {
		uuid, queried := s.uuids[key(d)]
		return d.Health.OK() && uuid == "" && (!queried || time.Now().After(s.retryAt))
	}
	if s.running != nil || !slices.ContainsFunc(gpus, isDue) {
		return nil
	}
	ended := make(chan struct{})
	s.running, s.retryAt = ended, time.Now().Add(retryInterval)
	go func() {
		defer close(ended)
		if s.finishQuery(gpus) {
			s.callChanged()
		}
	}()
	return ended
}

// finishQuery queries the UUIDs of gpus and reports whether they have changed.
func (s *source) finishQuery(gpus []discovery.Device) (changed bool) {
	byAddress, err := s.query(gpus)
	s.mu.Lock()
	defer s.mu.Unlock()
	uuids := assign(gpus, byAddress)
	for gpu := range uuids {
		uuids[gpu] = cmp.Or(uuids[gpu], s.uuids[gpu])
	}
	changed = !maps.Equal(uuids, s.uuids)
	s.uuids, s.err, s.running = uuids, err, nil
	return changed
}

// Watch implements [discovery.Source].
func (s *source) Watch(ctx context.Context, changed func()) error {
	s.setChanged(changed)
	defer s.setChanged(func() {})
	return s.Source.Watch(ctx, s.callChanged)
}

func (s *source) setChanged(changed func()) {
	s.watchMu.Lock()
	defer s.watchMu.Unlock()
	s.changed = changed
}

// callChanged calls the function of Watch.
func (s *source) callChanged() {
	s.watchMu.Lock()
	defer s.watchMu.Unlock()
	s.changed()
}

// assign returns the UUIDs of gpus by [key], "" for unknown ones. A GPU has the UUID at its PCI
// address. A GPU whose address is unknown or not unique has a UUID only if it is the only
// GPU and there is one UUID.
func assign(gpus []discovery.Device, byAddress map[string]string) map[string]string {
	atAddress := map[string]int{}
	for _, d := range gpus {
		atAddress[pciAddress(d)]++
	}
	uuids := map[string]string{}
	for _, d := range gpus {
		address, uuid := pciAddress(d), ""
		switch {
		case address != "" && atAddress[address] == 1:
			uuid = byAddress[address]
		case len(gpus) == 1 && len(byAddress) == 1:
			for _, uuid = range byAddress {
			}
		}
		uuids[key(d)] = uuid
	}
	return uuids
}

// pciAddress returns the PCI address of a GPU in the notation of nvidia-smi, such as
// 00000000:1B:00.0, and "" if it is unknown.
func pciAddress(d discovery.Device) string {
	segment, bus, device, function, known := d.PCIAddress()
	if !known {
		return ""
	}
	return fmt.Sprintf("%08X:%02X:%02X.%X", segment, bus, device, function)
}
