// Package node opens the source of this node's GPUs: the compiled inventory, the driver, or the file
// with the GPUs that were discovered last.
package node

import (
	"context"
	"errors"
	"runtime"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/nvidia"
	"github.com/directx-nri/directx-nri/internal/errlog"
)

// Options configure [Open].
type Options struct {
	// UseInventory selects the compiled inventory in StateDir: see policy.Policy.
	UseInventory bool
	StateDir     string
	// UUIDs queries the driver on Linux, and adds the UUIDs of NVIDIA's GPUs. Without it, the GPUs are
	// those in the list [Discovered], so that a container's start does not wait for the driver. On
	// Windows, the driver is always queried. Devices of a source with UUIDs must not be called
	// concurrently without IDs.
	UUIDs *nvidia.UUIDs
	// Save requires UUIDs. On Linux, it writes the list to [Discovered]. If that fails, the devices are
	// unhealthy, because containers would get those of an older list.
	Save bool
	// HostRoot is where the node's root directory is mounted, for a program in a container
	// on Linux.
	HostRoot string
}

// ErrNoSource reports that a Linux node has neither an inventory nor a driver of GPU
// paravirtualization.
var ErrNoSource = errors.New("no inventory is configured")

// Open returns the source of the node's GPUs: the compiled inventory, or the discovered GPUs. It
// reads nothing yet. Its error matches [ErrNoSource].
func Open(o Options) (discovery.Source, error) {
	if o.UseInventory {
		return CompiledInventory(o.StateDir), nil
	}
	source, err := openDriver(o)
	if err != nil || o.UUIDs == nil {
		return source, err
	}
	return &sourceWithUUIDs{Source: source, uuids: o.UUIDs, list: Discovered(o.StateDir), saves: o.Save}, nil
}

// sourceWithUUIDs is the source with [Options.UUIDs].
type sourceWithUUIDs struct {
	discovery.Source
	uuids *nvidia.UUIDs
	list  DeviceList
	saves bool
}

// Devices implements [discovery.Source]. With IDs, it adds no UUIDs and saves nothing.
func (s *sourceWithUUIDs) Devices(ctx context.Context, instanceIDs ...string) ([]discovery.Device, error) {
	devices, err := s.Source.Devices(ctx, instanceIDs...)
	if err != nil || len(instanceIDs) > 0 {
		return devices, err
	}
	if err := s.uuids.Add(ctx, devices); err != nil {
		return nil, err
	}
	if !s.saves || runtime.GOOS == "windows" { // There, all programs query the driver.
		return devices, nil
	}
	if err := s.list.Write(devices); err != nil {
		for i := range devices {
			if devices[i].Health.OK() {
				devices[i].Health.Reason = errlog.Text(err)
			}
		}
	}
	return devices, nil
}
