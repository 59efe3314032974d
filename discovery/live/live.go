// Package live picks where a node's GPUs are known from: the inventory file,
// where one is named, and otherwise the node itself.
package live

import (
	"errors"

	"github.com/sirupsen/logrus"

	"directx-nri/discovery"
	"directx-nri/discovery/inventory"
)

// ErrNoInventory tells that no inventory file is named on a system whose GPUs
// cannot be found without one. Only Windows tells of them.
var ErrNoInventory = errors.New("no inventory file is named, and only on Windows GPUs are found without one")

// Open returns the source of this node's GPUs: the inventory file at the path
// inventoryPath, and the node itself when that is "". It reads nothing yet. The
// only error is [ErrNoInventory].
func Open(inventoryPath string, log logrus.FieldLogger) (discovery.Source, error) {
	if inventoryPath != "" {
		return inventory.Open(inventoryPath, log), nil
	}
	return openNode(log)
}

// OpenWithUUIDs is [Open] for whoever stays: the list has the UUIDs that drivers
// know their GPUs by, for which some take seconds.
func OpenWithUUIDs(inventoryPath string, log logrus.FieldLogger) (discovery.Source, error) {
	if inventoryPath != "" {
		return inventory.Open(inventoryPath, log), nil
	}
	return openNodeWithUUIDs(log)
}
