//go:build !windows && !linux

package node

import (
	"errors"

	"github.com/directx-nri/directx-nri/discovery"
)

// ErrNoInventory reports that GPUs cannot be discovered on this system.
var ErrNoInventory = errors.New("GPUs are discovered on Windows and Linux only: set inventory in the configuration")

func openDriver(Options) (discovery.Source, error) { return nil, ErrNoInventory }
