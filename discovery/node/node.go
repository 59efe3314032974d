// Package node opens the source of this node's GPUs.
package node

import (
	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/compiled"
)

// Options configure [Open].
type Options struct {
	// Inventory selects the compiled inventory in StateDir: see policy.Policy.
	Inventory bool
	StateDir  string
	// Live asks the driver on Linux, too. Otherwise the GPUs there are those that a
	// source with Record found last, so that a container's start does not wait for the
	// driver.
	Live bool
	// Record is Live, and writes what it finds for the other programs.
	Record bool
	// UUIDs adds the GPUs' UUIDs to the list: see [discovery.WithUUIDs].
	UUIDs bool
	// HostRoot is where the node's root directory is mounted, for a program in a container
	// on Linux.
	HostRoot string
	Log      logrus.FieldLogger
}

// Open returns the source of the node's GPUs: the compiled inventory, or those that are
// discovered. It reads nothing yet. Its only error is [ErrNoInventory].
func Open(o Options) (discovery.Source, error) {
	if o.Inventory {
		return compiled.Open(o.StateDir), nil
	}
	return discovered(o)
}
