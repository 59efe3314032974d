package node

import (
	"time"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/pnp"
	"github.com/directx-nri/directx-nri/internal/win32"
)

func openDriver(o Options) (discovery.Source, error) {
	source := discovery.Source(pnp.Open(pnp.NewSystem(), o.Log))
	if o.UUIDs {
		source = discovery.WithUUIDs(source, 3*time.Second, win32.NVMLUUIDs)
	}
	return source, nil
}
