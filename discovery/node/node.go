// Package node opens the source of this node's GPUs.
package node

import (
	"errors"

	"github.com/sirupsen/logrus"

	"directx-nri/discovery"
	"directx-nri/discovery/compiled"
)

// ErrNoInventory reports that there is no inventory on a system whose GPUs cannot
// be discovered.
var ErrNoInventory = errors.New("GPUs are discovered on Windows only: set inventory in the configuration")

// Options configure [Open].
type Options struct {
	// Inventory selects the compiled inventory in StateDir: see policy.Policy.
	Inventory bool
	StateDir  string
	// UUIDs adds the GPUs' UUIDs to the list, which can take seconds. Find never
	// returns them.
	UUIDs bool
	Log   logrus.FieldLogger
}

// Open returns the source of the node's GPUs: the compiled inventory, or Plug and
// Play. It reads nothing yet. Its only error is [ErrNoInventory].
func Open(o Options) (discovery.Source, error) {
	if o.Inventory {
		return compiled.Open(o.StateDir), nil
	}
	return discovered(o)
}
