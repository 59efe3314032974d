package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/directx-nri/directx-nri/internal/discovery"
	"github.com/directx-nri/directx-nri/internal/discovery/dxg"
	"github.com/directx-nri/directx-nri/internal/discovery/nvidia"
)

func openDriver(o Options) (discovery.Source, error) {
	discovered, isLive := Discovered(o.StateDir), o.Live || o.Save
	if !isLive {
		// If this program runs in a container, the container need not have /dev/dxg.
		if _, err := os.Lstat(discovered.Path()); err == nil {
			return discovered, nil
		}
	}
	if _, err := os.Lstat(filepath.Join(o.HostRoot, dxg.DefaultDevice)); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w, and %w", dxg.ErrNoDevice, ErrNoInventory)
	}
	if !isLive {
		return discovered, nil
	}
	source := dxg.Open(o.HostRoot, o.Log)
	if o.Save {
		return savingSource{nvidia.WithUUIDs(source, o.HostRoot), discovered}, nil
	}
	return source, nil
}

// savingSource writes each list of its source to a file before it returns it. Devices is
// called by one goroutine.
type savingSource struct {
	discovery.Source
	file File
}

// Devices implements [discovery.Source].
func (s savingSource) Devices(ctx context.Context) ([]discovery.Device, error) {
	devices, err := s.Source.Devices(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.file.Write(devices); err != nil {
		return nil, err
	}
	return devices, nil
}
