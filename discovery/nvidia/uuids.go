// Package nvidia adds the UUIDs of NVIDIA's GPUs to lists of devices, as nvidia-smi reports them.
package nvidia

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/pci"
)

// retryInterval is the time after which an unknown UUID is queried again.
const retryInterval = time.Minute

// UUIDs has the UUIDs of NVIDIA's GPUs. Create it with [NewUUIDs].
type UUIDs struct {
	// query returns UUIDs by PCI address, and an error if some are missing.
	query func(ctx context.Context, gpus []discovery.Device) (map[string]string, error)
	// firstTimeout is the time limit of the first query, 0 for none.
	firstTimeout time.Duration
	// uuids is the result of the last query by [key], with "" for unknown UUIDs.
	uuids   map[string]string
	err     error // of the last query
	retryAt time.Time
}

// NewUUIDs returns UUIDs that are not known yet. hostRoot is where the node's root directory is
// mounted, for a program in a container on Linux. Windows ignores it. firstTimeout is the time limit
// of the first query, 0 for none. The next list queries again without this limit.
func NewUUIDs(hostRoot string, firstTimeout time.Duration) *UUIDs {
	return &UUIDs{firstTimeout: firstTimeout, query: func(ctx context.Context, gpus []discovery.Device) (map[string]string, error) {
		return query(ctx, hostRoot, gpus)
	}}
}

// key identifies a GPU until its driver restarts, which changes the LUID.
func key(d discovery.Device) string { return d.InstanceID + d.LUID.String() }

// Add adds the UUIDs of NVIDIA's GPUs to devices, a list of all devices. It returns an error only if
// ctx ends. It must not be called concurrently.
//
// nvidia-smi runs for GPUs that are new, for GPUs whose driver has restarted, and again after a
// minute for GPUs whose UUID it did not report. Add waits for it, at most for [queryTimeout].
func (u *UUIDs) Add(ctx context.Context, devices []discovery.Device) error {
	gpus := slices.DeleteFunc(slices.Clone(devices), func(d discovery.Device) bool { return d.VendorID != pci.VendorNVIDIA })
	if slices.ContainsFunc(gpus, u.isDue) {
		u.queryUUIDs(ctx, gpus)
	}
	for i, d := range devices {
		uuid, queried := u.uuids[key(d)]
		devices[i].UUID = uuid
		if queried && uuid == "" && u.err != nil && !errors.Is(u.err, errors.ErrUnsupported) {
			devices[i].Notes = append(slices.Clip(d.Notes), fmt.Sprintf("its UUID is unknown: %q", errlog.Text(u.err)))
		}
	}
	return context.Cause(ctx)
}

// isDue reports whether the UUID of d must be queried.
func (u *UUIDs) isDue(d discovery.Device) bool {
	uuid, queried := u.uuids[key(d)]
	return d.Health.OK() && uuid == "" && (!queried || !time.Now().Before(u.retryAt))
}

func (u *UUIDs) queryUUIDs(ctx context.Context, gpus []discovery.Device) {
	pause := retryInterval
	if u.uuids == nil && u.firstTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, u.firstTimeout)
		defer cancel()
		pause = 0
	}
	byAddress, err := u.query(ctx, gpus)
	uuids := assign(gpus, byAddress)
	for gpu := range uuids {
		uuids[gpu] = cmp.Or(uuids[gpu], u.uuids[gpu])
	}
	u.uuids, u.err, u.retryAt = uuids, err, time.Now().Add(pause)
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
		address := pciAddress(d)
		switch {
		case address != "" && atAddress[address] == 1:
			uuids[key(d)] = byAddress[address]
		case len(gpus) == 1 && len(byAddress) == 1:
			uuids[key(d)] = slices.Collect(maps.Values(byAddress))[0]
		default:
			uuids[key(d)] = ""
		}
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
