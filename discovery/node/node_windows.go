package node

import (
	"directx-nri/discovery"
	"directx-nri/discovery/pnp"
)

func discovered(o Options) (discovery.Source, error) {
	system := pnp.NewSystem()
	if o.UUIDs {
		system = pnp.NewSystemWithUUIDs()
	}
	return pnp.Open(system, o.Log), nil
}
