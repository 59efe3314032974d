package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/compiled"
	"github.com/directx-nri/directx-nri/discovery/dxg"
)

// ErrNoInventory reports that there is neither a driver of GPU paravirtualization nor an
// inventory.
var ErrNoInventory = fmt.Errorf("%w, and no inventory is configured", dxg.ErrNoDevice)

func discovered(o Options) (discovery.Source, error) {
	if !o.Live && !o.Record {
		// The record is enough: the driver may be outside of this program's container.
		if _, err := os.Lstat(compiled.DiscoveredPath(o.StateDir)); err == nil {
			return compiled.OpenDiscovered(o.StateDir), nil
		}
	}
	switch _, err := os.Lstat(filepath.Join(o.HostRoot, dxg.DefaultDevice)); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, ErrNoInventory
	case !o.Live && !o.Record:
		return compiled.OpenDiscovered(o.StateDir), nil
	}
	source := discovery.Source(dxg.Open(dxg.Options{HostRoot: o.HostRoot, Log: o.Log}))
	if o.UUIDs {
		source = discovery.WithUUIDs(source, 0, func([]string) (map[string]string, error) { return dxg.UUIDs(o.HostRoot) })
	}
	if o.Record {
		return &recorder{Source: source, stateDir: o.StateDir}, nil
	}
	return source, nil
}

// recorder writes what its source finds for the programs that start containers, before
// it returns it. Devices is called by one goroutine.
type recorder struct {
	discovery.Source
	stateDir string
}

// Devices implements [discovery.Source].
func (r *recorder) Devices(ctx context.Context) ([]discovery.Device, error) {
	devices, err := r.Source.Devices(ctx)
	if err == nil {
		err = compiled.WriteDiscovered(r.stateDir, devices)
	}
	if err != nil {
		return nil, err
	}
	return devices, nil
}
