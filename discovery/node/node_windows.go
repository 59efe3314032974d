package node

import (
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/pnp"
	"github.com/directx-nri/directx-nri/discovery/uuids"
)

func openDriver(o Options) (discovery.Source, error) {
	source := discovery.Source(pnp.Open(pnp.NewSystem(), o.Log))
	if o.UUIDs {
		source = uuids.Add(source, "")
	}
	return source, nil
}
