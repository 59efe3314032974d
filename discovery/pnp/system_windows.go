package pnp

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/windows"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/win32"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// Open returns a source of the devices of this computer (see [Devices]). It reads nothing yet, and caches
// nothing. Even a driver store directory can change, because Windows reuses the names of INF files, such as
// oem12.inf.
func Open() *Source { return newSource(readSnapshot) }

func readSnapshot(ctx context.Context, wanted func(instanceID string) bool, withDXCore bool) (s Snapshot, err error) {
	if s.Devices, err = readDevices(ctx, wanted); err != nil {
		return s, err
	}
	if s.DXCoreErr = errNotQueried; withDXCore {
		s.Adapters, s.DXCoreErr = win32.Adapters()
	}
	return s, nil
}

// readDevices reads the present devices of both classes with a wanted instance ID, in Windows' order.
func readDevices(ctx context.Context, wanted func(instanceID string) bool) (list []Properties, err error) {
	for _, class := range []windows.GUID{win32.DisplayClass, win32.ComputeAcceleratorClass} {
		err := win32.VisitDevices(class, func(device win32.Device) error {
			id, err := device.InstanceID()
			if err == nil && wanted(id) { // An error means that the device has just been removed.
				list = append(list, readProperties(device, id, class == win32.ComputeAcceleratorClass))
			}
			return ctx.Err()
		})
		if err != nil {
			return nil, err
		}
	}
	return list, ctx.Err()
}

func readProperties(device win32.Device, instanceID string, isCompute bool) Properties {
	r := &propertyReader{device: device}
	p := Properties{
		InstanceID:    instanceID,
		ComputeClass:  isCompute,
		Description:   readValue(r, win32.DeviceDesc, win32.Property.StringValue),
		HardwareIDs:   readValue(r, win32.HardwareIDs, win32.Property.StringList),
		LocationPaths: readValue(r, win32.LocationPaths, win32.Property.StringList),
		LUID:          readValue(r, win32.GPULUID, decodeLUID),
		DriverKey:     readValue(r, win32.Driver, win32.Property.StringValue),
		DriverVersion: readValue(r, win32.DriverVersion, win32.Property.StringValue),
		NUMANode:      readOptional(r, win32.NUMANode, win32.Property.Uint32),
		BusNumber:     readOptional(r, win32.BusNumber, win32.Property.Uint32),
		Address:       readOptional(r, win32.Address, win32.Property.Uint32),
		Status:        readValue(r, win32.DevNodeStatus, win32.Property.Uint32),
		Problem:       readValue(r, win32.ProblemCode, win32.Property.Uint32),
	}
	inf := readValue(r, win32.DriverINF, win32.Property.StringValue)
	p.ReadErrors = r.errors
	if p.DriverKey != "" {
		p.Values, p.ValuesErr = win32.DriverValues(p.DriverKey, []string{userModeName}, slices.Concat(system32Keys(), sysWOW64Keys()))
	}
	if inf != "" {
		path, err := win32.DriverStoreINF(inf)
		if p.PackageDirErr = err; err == nil {
			p.PackageDir = winpath.Dir(path)
		}
	}
	return p
}

func decodeLUID(p win32.Property) (discovery.LUID, error) {
	n, err := p.Uint64()
	return discovery.LUID(n), err
}

// propertyReader reads a device's properties and collects the errors.
type propertyReader struct {
	device win32.Device
	errors []error
}

// readValue reads a property, the zero value if the device does not have it or on an error.
func readValue[T any](r *propertyReader, name win32.PropertyName, decode func(win32.Property) (T, error)) T {
	return *cmp.Or(readOptional(r, name, decode), new(T))
}

// readOptional reads a property, nil if the device does not have it or on an error.
func readOptional[T any](r *propertyReader, name win32.PropertyName, decode func(win32.Property) (T, error)) *T {
	p, ok, err := r.device.Property(name)
	if err != nil {
		r.errors = append(r.errors, err)
		return nil
	}
	if !ok {
		return nil
	}
	v, err := decode(p)
	if err != nil {
		r.errors = append(r.errors, fmt.Errorf("read %s: %w", name, err))
		return nil
	}
	return &v
}
