package pnp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"directx-nri/discovery"
	"directx-nri/internal/win32"
	"directx-nri/internal/winpath"
)

// NewSystem returns the [System] of this computer. It caches nothing, not even driver
// store directories: the name of an INF file, such as oem12.inf, is reused.
func NewSystem() System { return system{} }

// NewSystemWithUUIDs is [NewSystem] with the UUIDs of NVIDIA's GPUs: see [WithUUIDs].
func NewSystemWithUUIDs() System { return WithUUIDs(system{}, win32.NVMLUUIDs) }

type system struct{}

func deviceClasses() []win32.GUID {
	return []win32.GUID{win32.DisplayClass(), win32.ComputeAcceleratorClass()}
}

// Snapshot implements [System].
func (system) Snapshot(ctx context.Context) (Snapshot, error) {
	var s Snapshot
	for _, c := range deviceClasses() {
		devices, err := presentDevices(ctx, c)
		if err != nil {
			return Snapshot{}, err
		}
		s.Devices = append(s.Devices, devices...)
	}
	s.Adapters, s.DXCoreErr = adapters(s.Devices)
	return s, nil
}

// presentDevices reads the present devices of a class, in Windows' order.
func presentDevices(ctx context.Context, class win32.GUID) (devices []Raw, err error) {
	set, err := win32.PresentDevices(class)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	for i := 0; ; i++ {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("read the devices of class %s: %w", class, err)
		}
		device, ok, err := set.Device(i)
		if err != nil {
			return nil, err
		}
		if !ok {
			return devices, nil
		}
		devices = append(devices, readDevice(device))
	}
}

// Find implements [System]. It opens each device by its instance ID, so that the cost
// does not depend on the number of devices.
func (system) Find(ctx context.Context, instanceIDs []string) (devices []Raw, err error) {
	set, err := win32.NoDevices()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	seen := map[string]bool{}
	for _, id := range instanceIDs {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("read device %s: %w", id, err)
		}
		key := strings.ToUpper(id)
		if seen[key] {
			continue
		}
		seen[key] = true
		raw, ok, err := find(set, id)
		if err != nil {
			return nil, err
		}
		if ok {
			devices = append(devices, raw)
		}
	}
	return devices, nil
}

// find reads a device; ok is false unless it is present and of a class of GPUs.
func find(set *win32.DeviceSet, id string) (raw Raw, ok bool, err error) {
	device, ok, err := set.Open(id)
	if err != nil || !ok {
		return Raw{}, false, err
	}
	if !slices.Contains(deviceClasses(), device.Class()) {
		return Raw{}, false, nil
	}
	if present, err := device.Present(); err != nil {
		return Raw{}, false, fmt.Errorf("device %s: %w", id, err)
	} else if !present {
		return Raw{}, false, nil
	}
	return readDevice(device), true, nil
}

// Notify implements [System].
func (system) Notify(ctx context.Context, changed func()) error {
	return win32.WatchDevices(ctx, []win32.GUID{win32.DisplayInterface(), win32.ComputeInterface()}, mayBeGPU, changed)
}

func readDevice(device win32.Device) Raw {
	r := reader{device: device, raw: Raw{Class: device.Class()}}
	raw := &r.raw
	var err error
	raw.InstanceID, err = device.InstanceID()
	r.keep(err)
	raw.Description = r.text(win32.DeviceDesc)
	raw.Manufacturer = r.text(win32.Manufacturer)
	raw.HardwareIDs = r.list(win32.HardwareIDs)
	raw.LocationPaths = r.list(win32.LocationPaths)
	raw.LUID = decoded(&r, win32.GPULUID, func(p win32.Property) (discovery.LUID, error) {
		n, err := p.Uint64()
		return discovery.LUID(n), err
	})
	raw.DriverKey = r.text(win32.Driver)
	raw.DriverVersion = r.text(win32.DriverVersion)
	raw.INF = r.text(win32.DriverINF)
	raw.NUMANode = decoded(&r, win32.NUMANode, win32.Property.Uint32)
	raw.BusNumber = decoded(&r, win32.BusNumber, win32.Property.Uint32)
	raw.Address = decoded(&r, win32.Address, win32.Property.Uint32)
	raw.Status, raw.Problem, err = device.Status()
	r.keep(err)
	if raw.DriverKey != "" {
		r.driverKey()
	}
	if raw.INF != "" {
		path, err := win32.DriverStoreINF(raw.INF)
		if raw.INFStoreErr = err; err == nil {
			raw.INFStore = winpath.Dir(path)
		}
	}
	return r.raw
}

// reader reads a device's properties into raw.
type reader struct {
	device win32.Device
	raw    Raw
}

func (r *reader) keep(err error) {
	if err != nil {
		r.raw.Unread = append(r.raw.Unread, err)
	}
}

func (r *reader) text(name win32.PropertyName) string {
	if s := decoded(r, name, win32.Property.Text); s != nil {
		return *s
	}
	return ""
}

func (r *reader) list(name win32.PropertyName) []string {
	if l := decoded(r, name, win32.Property.TextList); l != nil {
		return *l
	}
	return nil
}

// decoded reads a property, nil if the device does not have it or on an error.
func decoded[T any](r *reader, name win32.PropertyName, decode func(win32.Property) (T, error)) *T {
	p, ok, err := r.device.Property(name)
	if err != nil {
		r.keep(err)
		return nil
	}
	if !ok {
		return nil
	}
	v, err := decode(p)
	if err != nil {
		r.keep(fmt.Errorf("read %s: %w", name, err))
		return nil
	}
	return &v
}

// driverKey reads the values of the driver key that concern files.
func (r *reader) driverKey() {
	key, err := win32.OpenDriverKey(r.raw.DriverKey)
	if err != nil {
		r.raw.ValuesErr = err
		return
	}
	defer func() { r.keep(key.Close()) }()
	var failed []error // errors.Join ignores nil.
	for _, name := range userModeNames() {
		v, ok, err := key.Value(name)
		failed = append(failed, err)
		if ok {
			r.raw.Values = append(r.raw.Values, Value{Name: v.Name, Type: v.Type, Data: v.Data})
		}
	}
	for _, subkey := range slices.Concat(system32Keys(), sysWOW64Keys()) {
		values, err := key.Values(subkey)
		failed = append(failed, err)
		for _, v := range values {
			r.raw.Values = append(r.raw.Values, Value{Subkey: subkey, Name: v.Name, Type: v.Type, Data: v.Data})
		}
	}
	r.raw.ValuesErr = errors.Join(failed...)
}

// adapters returns the DXCore adapters with a known attribute, and those of devices:
// a neural processor may have no such attribute.
func adapters(devices []Raw) ([]Adapter, error) {
	dxcore, err := win32.OpenDXCore()
	if err != nil {
		return nil, err
	}
	defer dxcore.Close()
	var (
		all    []Adapter
		failed []error
	)
	known := map[discovery.LUID]bool{}
	add := func(adapter *win32.Adapter) {
		defer adapter.Close()
		a := readAdapter(adapter)
		if a.LUID == 0 || !known[a.LUID] {
			known[a.LUID] = true
			all = append(all, a)
		}
	}
	attributes := []win32.AdapterAttribute{win32.D3D11Graphics(), win32.D3D12Graphics(), win32.D3D12CoreCompute(), win32.D3D12GenericML()}
	for _, attribute := range attributes {
		list, err := dxcore.Adapters(attribute)
		if err != nil {
			failed = append(failed, err)
		}
		for _, adapter := range list {
			add(adapter)
		}
	}
	if len(failed) == len(attributes) {
		return nil, errors.Join(failed...)
	}
	for i := range devices {
		luid := devices[i].LUID
		if luid == nil || known[*luid] {
			continue
		}
		adapter, err := dxcore.AdapterByLUID(uint64(*luid))
		if err != nil {
			devices[i].Unread = append(devices[i].Unread, err)
			continue
		}
		add(adapter)
	}
	return all, nil
}

func readAdapter(adapter *win32.Adapter) Adapter {
	var a Adapter
	keep := func(err error) {
		if err != nil {
			a.Unread = append(a.Unread, err)
		}
	}
	is := func(property win32.AdapterProperty) bool {
		v, err := adapter.Bool(property)
		keep(err)
		return v
	}
	luid, err := adapter.Uint64(win32.InstanceLUID)
	keep(err)
	a.LUID = discovery.LUID(luid)
	a.Description, err = adapter.Text(win32.DriverDescription)
	keep(err)
	a.Hardware = is(win32.IsHardware)
	a.Integrated = is(win32.IsIntegrated)
	a.Detachable = is(win32.IsDetachable)
	a.DedicatedMemory, err = adapter.Uint64(win32.DedicatedAdapterMemory)
	keep(err)
	a.D3D11Graphics = adapter.Has(win32.D3D11Graphics())
	a.D3D12Graphics = adapter.Has(win32.D3D12Graphics())
	a.D3D12CoreCompute = adapter.Has(win32.D3D12CoreCompute())
	a.D3D12GenericML = adapter.Has(win32.D3D12GenericML())
	return a
}
