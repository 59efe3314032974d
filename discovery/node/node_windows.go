package node

import (
	"errors"

	"directx-nri/discovery"
	"directx-nri/discovery/pnp"
)

// ErrNoInventory is not returned on Windows.
var ErrNoInventory = errors.New("no inventory is configured")

func discovered(o Options) (discovery.Source, error) {
	system := pnp.NewSystem()
	if o.UUIDs {
		system = pnp.NewSystemWithUUIDs()
	}
	return pnp.Open(system, o.Log), nil
}
