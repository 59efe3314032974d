package node

import (
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/pnp"
	"github.com/directx-nri/directx-nri/discovery/uuids"
)

func openDriver(o Options) (discovery.Source, error) {
	source := pnp.Open(pnp.NewSystem(), o.Log)
	if o.Save {
		return uuids.WithUUIDs(source, ""), nil
	}
	return source, nil
}
