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

// NewSystem returns the Windows that this program runs on.
//
// It keeps nothing: each call reads anew, so that no answer can be older than its
// question. The folder of a driver package in the driver store too: an INF file's
// name, such as oem12.inf, is given to another package when its own is gone.
func NewSystem() System { return system{} }

// NewSystemWithUUIDs is [NewSystem] whose snapshots have the UUIDs of NVIDIA's
// GPUs. Those are remembered: see [WithUUIDs].
func NewSystemWithUUIDs() System { return WithUUIDs(system{}, win32.NVMLUUIDs) }

type system struct{}

// class is a setup class in the two forms it is needed in.
type class struct {
	name Class
	guid win32.GUID
}

func deviceClasses() []class {
	return []class{
		{ClassDisplay, win32.DisplayClass()},
		{ClassComputeAccelerator, win32.ComputeAcceleratorClass()},
	}
}

// Snapshot implements [System]. Software renderers are no PnP devices, or not
// always: they are among the adapters.
func (system) Snapshot(ctx context.Context) (Snapshot, error) {
	var s Snapshot
	for _, c := range deviceClasses() {
		devices, err := present(ctx, c)
		if err != nil {
			return Snapshot{}, err
		}
		s.Devices = append(s.Devices, devices...)
	}
	s.Adapters, s.DXCoreErr = adapters(s.Devices)
	return s, nil
}

// present reads the devices of a class that are present, in Windows' order.
func present(ctx context.Context, c class) (devices []Raw, err error) {
	set, err := win32.PresentDevices(c.guid)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	for i := 0; ; i++ {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("read the devices of class %s: %w", c.name, err)
		}
		device, ok, err := set.Device(i)
		if err != nil {
			return nil, err
		}
		if !ok {
			return devices, nil
		}
		devices = append(devices, read(device, c.name))
	}
}

// Find implements [System]. It opens each device by its instance ID, so what it
// costs does not grow with the node. A device that Windows only remembers, or that
// is of another class, is left out, as it is of a snapshot.
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
		if key := strings.ToUpper(id); seen[key] {
			continue
		} else {
			seen[key] = true
		}
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

// find reads the device with an instance ID; ok is false when there is none of our
// classes now.
func find(set *win32.DeviceSet, id string) (raw Raw, ok bool, err error) {
	device, ok, err := set.Open(id)
	if err != nil || !ok {
		return Raw{}, false, err
	}
	classes := deviceClasses()
	i := slices.IndexFunc(classes, func(c class) bool { return c.guid == device.Class() })
	if i < 0 {
		return Raw{}, false, nil
	}
	if present, err := device.Present(); err != nil {
		return Raw{}, false, fmt.Errorf("device %s: %w", id, err)
	} else if !present {
		return Raw{}, false, nil
	}
	return read(device, classes[i].name), true, nil
}

// Notify implements [System].
func (system) Notify(ctx context.Context, changed func()) error {
	return win32.WatchDevices(ctx, []win32.GUID{win32.DisplayInterface(), win32.ComputeInterface()}, concernsGPUs, changed)
}

// read reads one device. What cannot be read of it is told with it.
func read(device win32.Device, c Class) Raw {
	r := reader{device: device, raw: Raw{Class: c}}
	raw := &r.raw
	var err error
	raw.InstanceID, err = device.InstanceID()
	r.unread(err)
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
	r.unread(err)
	if raw.DriverKey != "" {
		r.driverKey()
	}
	if raw.INF != "" {
		raw.INFStore, raw.INFStoreErr = infStore(raw.INF)
	}
	return r.raw
}

// infStore returns the folder of the driver package that an INF file is from.
func infStore(inf string) (string, error) {
	path, err := win32.DriverStoreINF(inf)
	if err != nil {
		return "", err
	}
	return winpath.Dir(path), nil
}

// reader reads a device's properties and keeps what went wrong.
type reader struct {
	device win32.Device
	raw    Raw
}

func (r *reader) unread(err error) {
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

// decoded reads a property, nil when the device does not have it or it cannot be
// read.
func decoded[T any](r *reader, name win32.PropertyName, decode func(win32.Property) (T, error)) *T {
	p, ok, err := r.device.Property(name)
	if err != nil {
		r.unread(err)
		return nil
	}
	if !ok {
		return nil
	}
	v, err := decode(p)
	if err != nil {
		r.unread(fmt.Errorf("read %s: %w", name, err))
		return nil
	}
	return &v
}

// driverKey reads the values of the driver's key that say something about files.
func (r *reader) driverKey() {
	key, err := win32.OpenDriverKey(r.raw.DriverKey)
	if err != nil {
		r.raw.ValuesErr = err
		return
	}
	defer func() { r.unread(key.Close()) }()
	var failed []error // What is nil is left out.
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

// adapters asks DXCore for the adapters that have one of the attributes, and for
// those of devices: a neural processor may have none of them.
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
	attributes := win32.AdapterAttributes()
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
		adapter, err := dxcore.AdapterByLUID(win32.LUIDFrom(uint64(*luid)))
		if err != nil {
			devices[i].Unread = append(devices[i].Unread, err)
			continue
		}
		add(adapter)
	}
	return all, nil
}

// readAdapter reads one adapter.
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
	luid, err := adapter.LUID()
	keep(err)
	a.LUID = discovery.LUID(luid.Uint64())
	a.Description, err = adapter.Text(win32.DriverDescription)
	keep(err)
	a.Hardware = is(win32.IsHardware)
	a.Integrated = is(win32.IsIntegrated)
	a.Detachable = is(win32.IsDetachable)
	a.DedicatedMemory, err = adapter.Uint64(win32.DedicatedAdapterMemory)
	keep(err)
	a.D3D11Graphics = adapter.Has(win32.D3D11Graphics)
	a.D3D12Graphics = adapter.Has(win32.D3D12Graphics)
	a.D3D12CoreCompute = adapter.Has(win32.D3D12CoreCompute)
	return a
}

// userModeNames are the driver key's own values that name the user-mode driver's
// files, for 64-bit and for 32-bit programs.
// https://learn.microsoft.com/windows-hardware/drivers/display/loading-a-user-mode-display-driver
func userModeNames() []string { return []string{"UserModeDriverName", "UserModeDriverNameWow"} }
