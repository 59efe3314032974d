package node

import (
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/nvidia"
	"github.com/directx-nri/directx-nri/discovery/pnp"
)

func openDriver(o Options) (discovery.Source, error) {
	source := pnp.Open(pnp.NewSystem(), o.Log)
	if o.Save {
		return nvidia.WithUUIDs(source, ""), nil
	}
	return source, nil
}
