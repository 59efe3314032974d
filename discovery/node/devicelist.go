package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// maxBytes is more than the GPUs of any node take.
const maxBytes = 64 << 20

// DeviceList is a file in the state directory with a list of GPUs, as JSON. As a [discovery.Source] it keeps
// nothing: each call reads the file.
type DeviceList struct{ path string }

var _ discovery.Source = DeviceList{}

// CompiledInventory returns the list of the compiled inventory.
func CompiledInventory(stateDir string) DeviceList {
	return DeviceList{filepath.Join(stateDir, paths.InventoryFile)}
}

// Discovered returns the list of the GPUs that the driver listed last. On Linux, the
// programs that start containers read it and do not ask the driver.
func Discovered(stateDir string) DeviceList {
	return DeviceList{filepath.Join(stateDir, paths.DiscoveredFile)}
}

// Path returns the path of the file.
func (l DeviceList) Path() string { return l.path }

// Write replaces the list in one step and syncs it, unless it is the same. It creates the
// state directory if necessary.
func (l DeviceList) Write(devices []discovery.Device) error {
	data, err := json.Marshal(append([]discovery.Device{}, devices...))
	if err == nil {
		err = access.MakePrivate(filepath.Dir(l.path))
	}
	if err == nil {
		err = durable.Update(l.path, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the list of GPUs: %w", err)
	}
	return nil
}

// Remove removes the file if it exists.
func (l DeviceList) Remove() error { return durable.Remove(l.path) }

// Devices implements [discovery.Source]. The order is that of [DeviceList.Write].
func (l DeviceList) Devices(context.Context, ...string) (devices []discovery.Device, err error) {
	var data []byte
	if err = access.CheckPrivate(filepath.Dir(l.path)); err == nil {
		data, err = durable.Read(l.path, maxBytes)
	}
	if err == nil {
		err = json.Unmarshal(data, &devices)
	}
	if err == nil && devices == nil {
		err = errors.New("it has no list")
	}
	if err != nil {
		return nil, errlog.WithRemedy(fmt.Errorf("read the list of GPUs %s: %w", l.path, err), errlog.Rewrite)
	}
	return devices, nil
}
