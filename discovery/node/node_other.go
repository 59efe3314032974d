//go:build !windows

package node

import "directx-nri/discovery"

func discovered(Options) (discovery.Source, error) { return nil, ErrNoInventory }
