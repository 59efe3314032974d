package node

import (
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/pnp"
)

func openDriver(o Options) (discovery.Source, error) {
	return pnp.Open(o.Log), nil
}
