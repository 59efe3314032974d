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

// format is the version of the file format: change it with the JSON names of [discovery.Device].
const format = 4

// maxBytes is more than the GPUs of any node take.
const maxBytes = 64 << 20

// DeviceList is a file in the state directory with a list of GPUs. As a [discovery.Source] it keeps
// nothing: each call reads the file.
type DeviceList struct{ stateDir, name string }

var _ discovery.Source = DeviceList{}

// CompiledInventory returns the list of the compiled inventory.
func CompiledInventory(stateDir string) DeviceList { return DeviceList{stateDir, paths.InventoryFile} }

// Discovered returns the list of the GPUs that the driver listed last. On Linux, the
// programs that start containers read it and do not ask the driver.
func Discovered(stateDir string) DeviceList { return DeviceList{stateDir, paths.DiscoveredFile} }

// Path returns the path of the file.
func (l DeviceList) Path() string { return filepath.Join(l.stateDir, l.name) }

// document is the content of a file.
type document struct {
	Format  int                `json:"format"`
	Devices []discovery.Device `json:"devices"`
}

// Write replaces the list in one step and syncs it, unless it is the same. It creates the
// state directory if necessary.
func (l DeviceList) Write(devices []discovery.Device) error {
	data, err := encode(devices)
	if err == nil {
		err = access.MakePrivate(l.stateDir)
	}
	if err == nil {
		err = durable.Update(l.Path(), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the list of GPUs: %w", err)
	}
	return nil
}

// Remove removes the file if it exists.
func (l DeviceList) Remove() error { return durable.Remove(l.Path()) }

// Devices implements [discovery.Source]. The order is that of [DeviceList.Write].
func (l DeviceList) Devices(context.Context) ([]discovery.Device, error) {
	devices, err := l.read()
	if err != nil {
		return nil, errlog.WithRemedy(fmt.Errorf("read the list of GPUs %s: %w", l.Path(), err), errlog.Rewrite)
	}
	return devices, nil
}

// Find implements [discovery.Source].
func (l DeviceList) Find(ctx context.Context, instanceIDs []string) ([]discovery.Device, error) {
	devices, err := l.Devices(ctx)
	return discovery.WithIDs(devices, instanceIDs), err
}

func (l DeviceList) read() ([]discovery.Device, error) {
	if err := access.CheckPrivate(l.stateDir); err != nil {
		return nil, err
	}
	data, err := durable.Read(l.Path(), maxBytes)
	if err != nil {
		return nil, err
	}
	return decode(data)
}

func encode(devices []discovery.Device) ([]byte, error) {
	if devices == nil {
		devices = []discovery.Device{}
	}
	return json.Marshal(document{format, devices})
}

func decode(data []byte) ([]discovery.Device, error) {
	var d document
	err := json.Unmarshal(data, &d)
	switch {
	case err != nil:
		return nil, err
	case d.Format != format:
		return nil, fmt.Errorf("format %d, want %d", d.Format, format)
	case d.Devices == nil:
		return nil, errors.New("no list of devices")
	}
	return d.Devices, nil
}
