// Package node opens the source of this node's GPUs: the compiled inventory, the driver, or
// the list that the driver gave last.
package node

import (
	"errors"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/discovery"
)

// Options configure [Open].
type Options struct {
	// UseInventory selects the compiled inventory in StateDir: see policy.Policy.
	UseInventory bool
	StateDir     string
	// Live asks the driver on Linux, too. Otherwise the GPUs there are those of
	// [Discovered], so that a container's start does not wait for the driver.
	Live bool
	// Save is Live, and writes [Discovered] on Linux.
	Save bool
	// UUIDs adds the GPUs' UUIDs to the list: see package uuids.
	UUIDs bool
	// HostRoot is where the node's root directory is mounted, for a program in a container
	// on Linux.
	HostRoot string
	Log      logrus.FieldLogger
}

// ErrNoInventory reports that there is no inventory, nor, on Linux, a driver of GPU
// paravirtualization. On Windows it is not returned.
var ErrNoInventory = errors.New("no inventory is configured")

// Open returns the source of the node's GPUs: the compiled inventory, or those that are
// discovered. It reads nothing yet. Its only error is [ErrNoInventory].
func Open(o Options) (discovery.Source, error) {
	if o.UseInventory {
		return Inventory(o.StateDir), nil
	}
	return openDriver(o)
}
