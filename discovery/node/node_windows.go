package node

import (
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/pnp"
)

func openDriver(Options) (discovery.Source, error) {
	return pnp.Open(), nil
}
