package node

import (
	"github.com/directx-nri/directx-nri/internal/discovery"
	"github.com/directx-nri/directx-nri/internal/discovery/pnp"
)

func openDriver(o Options) (discovery.Source, error) {
	return pnp.Open(pnp.NewSystem(), o.Log), nil
}
