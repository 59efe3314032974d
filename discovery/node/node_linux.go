package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/dxg"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
)

func openDriver(o Options) (discovery.Source, error) {
	discovered := Discovered(o.StateDir)
	if o.UUIDs == nil {
		// If this program runs in a container, the container need not have /dev/dxg.
		if _, err := os.Lstat(discovered.Path()); err == nil {
			return discovered, nil
		}
	}
	if _, _, err := hostfiles.Root(o.HostRoot).Lookup(dxg.DefaultDevice); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w, and %w", dxg.ErrNoDevice, ErrNoSource)
	}
	if o.UUIDs == nil {
		return discovered, nil
	}
	return dxg.Open(hostfiles.Root(o.HostRoot)), nil
}
