package node

import (
	"github.com/directx-nri/directx-nri/internal/discovery"
	"github.com/directx-nri/directx-nri/internal/discovery/nvidia"
	"github.com/directx-nri/directx-nri/internal/discovery/pnp"
)

func openDriver(o Options) (discovery.Source, error) {
	source := pnp.Open(pnp.NewSystem(), o.Log)
	if o.Save {
		return nvidia.WithUUIDs(source, ""), nil
	}
	return source, nil
}
