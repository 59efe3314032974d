package node

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/tidwall/gjson"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
)

const (
	// format is the version of the file format: change it with the JSON names of [discovery.Device].
	format = 3
	// maxLineBytes is more than any device takes.
	maxLineBytes = 16 << 20
	// bufferSize is enough for the lines of most drivers.
	bufferSize = 16 << 10
)

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

// header is the first line of a file. Each following line is a device.
type header struct {
	Format  int `json:"format"`
	Devices int `json:"devices"`
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
	return l.read(func([]byte) bool { return true })
}

// Find implements [discovery.Source]. It decodes only the devices that it returns.
func (l DeviceList) Find(_ context.Context, instanceIDs []string) ([]discovery.Device, error) {
	return l.read(func(line []byte) bool {
		return discovery.ContainsID(instanceIDs, gjson.GetBytes(line, "InstanceID").String())
	})
}

// read returns the devices on the lines for which wanted returns true.
func (l DeviceList) read(wanted func(line []byte) bool) (devices []discovery.Device, err error) {
	defer func() {
		if err != nil {
			err = errlog.WithRemedy(fmt.Errorf("read the list of GPUs %s: %w", l.Path(), err), errlog.Rewrite)
		}
	}()
	if err := access.CheckPrivate(l.stateDir); err != nil {
		return nil, err
	}
	file, err := durable.Open(l.Path())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return decode(file, wanted)
}

func encode(devices []discovery.Device) ([]byte, error) {
	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	err := encoder.Encode(header{format, len(devices)})
	for _, d := range devices {
		err = errors.Join(err, encoder.Encode(d))
	}
	return data.Bytes(), err
}

func decode(r io.Reader, wanted func(line []byte) bool) ([]discovery.Device, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, bufferSize), maxLineBytes)
	lines.Scan()
	var h header
	if err := json.Unmarshal(lines.Bytes(), &h); err != nil {
		return nil, errors.Join(fmt.Errorf("header: %w", err), lines.Err())
	}
	if h.Format != format {
		return nil, fmt.Errorf("format %d, want %d", h.Format, format)
	}
	devices, read := []discovery.Device{}, 0
	for ; lines.Scan(); read++ {
		if !wanted(lines.Bytes()) {
			continue
		}
		var d discovery.Device
		if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
			return nil, fmt.Errorf("device %d: %w", read, err)
		}
		devices = append(devices, d)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if read != h.Devices {
		return nil, fmt.Errorf("%d devices, want %d", read, h.Devices)
	}
	return devices, nil
}
