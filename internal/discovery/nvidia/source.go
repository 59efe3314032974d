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
	"time"

	"github.com/directx-nri/directx-nri/internal/discovery"
)

const (
	// retryInterval is the time after which an unknown UUID is queried again.
	retryInterval = time.Minute
	// firstTimeout is the time limit of the first query, because the kubelet waits for the first list.
	// The next list queries again without this limit.
	firstTimeout = time.Second
)

// WithUUIDs returns source with the UUIDs of NVIDIA's GPUs in its lists. [discovery.Source.Find] and
// At do not add them. Devices must not be called concurrently.
//
// nvidia-smi runs for GPUs that are new, for GPUs whose driver has restarted, and again after a
// minute for GPUs whose UUID it did not report. Devices waits for it, at most for [queryTimeout].
//
// hostRoot is where the node's root directory is mounted, for a program in a container on
// Linux, otherwise "".
func WithUUIDs(source discovery.Source, hostRoot string) discovery.Source {
	return newSource(source, func(ctx context.Context, gpus []discovery.Device) (map[string]string, error) {
		return query(ctx, hostRoot, gpus)
	})
}

type source struct {
	discovery.Source
	// query returns UUIDs by PCI address, and an error if some are missing.
	query func(ctx context.Context, gpus []discovery.Device) (map[string]string, error)
	// uuids is the result of the last query by [key], with "" for unknown UUIDs.
	uuids   map[string]string
	err     error // of the last query
	retryAt time.Time
}

func newSource(s discovery.Source, query func(context.Context, []discovery.Device) (map[string]string, error)) *source {
	return &source{Source: s, query: query}
}

// key identifies a GPU until its driver restarts, which changes the LUID.
func key(d discovery.Device) string { return d.InstanceID + d.LUID.String() }

// Devices implements [discovery.Source].
func (s *source) Devices(ctx context.Context) ([]discovery.Device, error) {
	devices, err := s.Source.Devices(ctx)
	if err != nil {
		return nil, err
	}
	gpus := slices.DeleteFunc(slices.Clone(devices), func(d discovery.Device) bool { return d.VendorID != discovery.VendorNVIDIA })
	if slices.ContainsFunc(gpus, s.isDue) {
		s.queryUUIDs(ctx, gpus)
	}
	for i, d := range devices {
		uuid, queried := s.uuids[key(d)]
		devices[i].UUID = uuid
		if queried && uuid == "" && s.err != nil && !errors.Is(s.err, errors.ErrUnsupported) {
			devices[i].Notes = append(slices.Clip(d.Notes), fmt.Sprintf("its UUID is unknown: %q", s.err.Error()))
		}
	}
	return devices, context.Cause(ctx)
}

// isDue reports whether the UUID of d must be queried.
func (s *source) isDue(d discovery.Device) bool {
	uuid, queried := s.uuids[key(d)]
	return d.Health.OK() && uuid == "" && (!queried || !time.Now().Before(s.retryAt))
}

func (s *source) queryUUIDs(ctx context.Context, gpus []discovery.Device) {
	pause := retryInterval
	if s.uuids == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, firstTimeout)
		defer cancel()
		pause = 0
	}
	byAddress, err := s.query(ctx, gpus)
	uuids := assign(gpus, byAddress)
	for gpu := range uuids {
		uuids[gpu] = cmp.Or(uuids[gpu], s.uuids[gpu])
	}
	s.uuids, s.err, s.retryAt = uuids, err, time.Now().Add(pause)
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
			uuid = slices.Collect(maps.Values(byAddress))[0]
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
