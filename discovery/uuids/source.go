// Package uuids adds the UUIDs of NVIDIA's GPUs to the lists of a source, as nvidia-smi
// reports them.
package uuids

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
	// maxWait is how long a list waits for nvidia-smi.
	maxWait = time.Second
	// retryInterval is the time after which an unknown UUID is queried again.
	retryInterval = time.Minute
)

// Add returns source with the UUIDs of NVIDIA's GPUs in its lists. [discovery.Source.Find] and
// At do not add them.
//
// nvidia-smi can take seconds, so a list waits for it only for a moment. When it reports
// other UUIDs later, Watch calls changed. It runs for GPUs that are new, for GPUs whose driver
// has restarted, and again after a while for GPUs whose UUID it did not report.
//
// hostRoot is where the node's root directory is mounted, for a program in a container on
// Linux, otherwise "".
func Add(source discovery.Source, hostRoot string) discovery.Source {
	return newSource(source, func(gpus []discovery.Device) (map[string]string, error) { return query(hostRoot, gpus) })
}

type queryFunc func(gpus []discovery.Device) (uuids map[string]string, err error)

func newSource(s discovery.Source, query queryFunc) *source { return &source{Source: s, query: query} }

type source struct {
	discovery.Source
	// query returns UUIDs by PCI address, and why some are missing.
	query queryFunc

	mu sync.Mutex
	// uuids has the GPUs of the last query, with "" for unknown UUIDs.
	uuids map[gpuID]string
	// err is the error of the last query, and queried is when it began.
	err     error
	queried time.Time
	running bool
	// changed is the function of Watch, nil while nothing watches.
	changed func()
}

// gpuID identifies a GPU until its driver restarts, which changes the LUID.
type gpuID struct {
	instanceID string
	luid       discovery.LUID
}

func idOf(d discovery.Device) gpuID { return gpuID{d.InstanceID, d.LUID} }

func isNVIDIA(d discovery.Device) bool { return d.VendorID == discovery.VendorNVIDIA }

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
		uuid, queried := s.uuids[idOf(d)]
		devices[i].UUID = uuid
		if queried && uuid == "" && s.err != nil && !errors.Is(s.err, errors.ErrUnsupported) {
			devices[i].Notes = append(slices.Clip(d.Notes), fmt.Sprintf("its UUID is unknown: %q", s.err.Error()))
		}
	}
	return devices, nil
}

// startQuery starts a query if a healthy GPU needs one and none is running. It returns a channel
// that is closed at its end, nil if it did not start one.
func (s *source) startQuery(devices []discovery.Device) (ended chan struct{}) {
	gpus := slices.DeleteFunc(slices.Clone(devices), func(d discovery.Device) bool { return !isNVIDIA(d) })
	s.mu.Lock()
	defer s.mu.Unlock()
	due := func(d discovery.Device) bool {
		uuid, queried := s.uuids[idOf(d)]
		return d.IgnorePathProblem().Health.OK() && uuid == "" && (!queried || time.Since(s.queried) > retryInterval)
	}
	if s.running || !slices.ContainsFunc(gpus, due) {
		return nil
	}
	s.running, s.queried, ended = true, time.Now(), make(chan struct{})
	go func() {
		defer close(ended)
		byAddress, err := s.query(gpus)
		s.update(assign(gpus, byAddress), err)
	}()
	return ended
}

// update sets the result of a query. A UUID that was known before stays.
func (s *source) update(uuids map[gpuID]string, err error) {
	s.mu.Lock()
	for id := range uuids {
		uuids[id] = cmp.Or(uuids[id], s.uuids[id])
	}
	changed := s.changed
	if maps.Equal(uuids, s.uuids) {
		changed = nil
	}
	s.uuids, s.err, s.running = uuids, err, false
	s.mu.Unlock()
	if changed != nil {
		changed()
	}
}

// Watch implements [discovery.Source].
func (s *source) Watch(ctx context.Context, changed func()) error {
	var calls sync.Mutex
	set := func(f func()) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed = f
	}
	oneAtATime := func() {
		calls.Lock()
		defer calls.Unlock()
		if ctx.Err() == nil {
			changed()
		}
	}
	set(oneAtATime)
	defer set(nil)
	return s.Source.Watch(ctx, oneAtATime)
}

// assign returns the UUIDs of gpus, "" for unknown ones. A GPU has the UUID at its PCI
// address. A GPU whose address is unknown or not unique has a UUID only if it is the only
// GPU and there is one UUID.
func assign(gpus []discovery.Device, byAddress map[string]string) map[gpuID]string {
	atAddress := map[string]int{}
	for _, d := range gpus {
		atAddress[pciAddress(d)]++
	}
	uuids := map[gpuID]string{}
	for _, d := range gpus {
		address, uuid := pciAddress(d), ""
		switch {
		case address != "" && atAddress[address] == 1:
			uuid = byAddress[address]
		case len(gpus) == 1 && len(byAddress) == 1:
			for _, uuid = range byAddress {
			}
		}
		uuids[idOf(d)] = uuid
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
