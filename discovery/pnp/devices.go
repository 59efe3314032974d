package pnp

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"directx-nri/discovery"
)

// Devices returns the devices that s tells of: every one, also those that cannot
// be used or never will be, each with the reason.
//
// What a device is for, DXCore says: display by its graphics attributes, compute
// by its core compute attribute alone. A device that does not run is unknown to
// DXCore, and then its setup class stands in; so it does for all devices where
// there is no DXCore, and a note says so. A device that runs and that DXCore does
// not know is for neither: it is a frame buffer, such as many virtual machines
// have beside their GPUs, or a GPU whose driver runs it without Direct3D, as
// NVIDIA's does in TCC mode. A frame buffer is one while it is disabled, too: its
// driver has no part for programs.
//
// The order is that of the devices' places, bus by bus, so that it changes only
// when hardware does, or what a device is for; those without a place follow by
// instance ID, and what is never offered stands at the end. Adapters that DXCore has and Plug and Play has
// not, such as software renderers, have `DXCORE\` and their LUID for an instance
// ID.
func Devices(s Snapshot) []discovery.Device {
	adapters := map[discovery.LUID]Adapter{}
	if s.DXCoreErr == nil {
		for _, a := range s.Adapters {
			if _, known := adapters[a.LUID]; a.LUID != 0 && !known {
				adapters[a.LUID] = a
			}
		}
	}
	matched := map[discovery.LUID]bool{}
	for _, raw := range s.Devices {
		if raw.LUID != nil {
			matched[*raw.LUID] = true
		}
	}
	says := dxcore{err: s.DXCoreErr, spare: slices.ContainsFunc(s.Adapters, func(a Adapter) bool {
		return !matched[a.LUID] && (a.Hardware || len(a.Unread) > 0)
	})}
	var devices []discovery.Device
	known := map[string]bool{}
	for _, raw := range s.Devices {
		id := strings.ToUpper(raw.InstanceID)
		if raw.InstanceID != "" && known[id] {
			continue
		}
		known[id] = true
		var adapter *Adapter
		if raw.LUID != nil {
			if a, ok := adapters[*raw.LUID]; ok {
				adapter = &a
			}
		}
		devices = append(devices, judge(raw, adapter, says))
	}
	for luid, a := range adapters {
		if !matched[luid] {
			devices = append(devices, deviceless(a))
		}
	}
	slices.SortStableFunc(devices, byPlace)
	return devices
}

// dxcore is what DXCore says of the node as a whole.
type dxcore struct {
	// err is why it says nothing at all.
	err error
	// spare tells of an adapter that is no device's by its LUID, and that is not
	// known to be software: it may be that of a device whose LUID is not known.
	spare bool
}

// judge returns the device that raw and its adapter describe. adapter is nil when
// DXCore has none.
func judge(raw Raw, adapter *Adapter, says dxcore) discovery.Device {
	d := discovery.Device{
		InstanceID:    raw.InstanceID,
		Description:   display(raw.Description),
		VendorID:      vendor(raw),
		Manufacturer:  display(raw.Manufacturer),
		DriverKey:     raw.DriverKey,
		DriverVersion: oneLine(raw.DriverVersion),
		NUMANode:      numaNode(raw.NUMANode),
		BusNumber:     raw.BusNumber,
		Address:       raw.Address,
		Status:        raw.Status,
		Problem:       raw.Problem,
	}
	d.UUID = raw.UUID
	if len(raw.LocationPaths) > 0 {
		d.LocationPath = raw.LocationPaths[0]
	}
	if raw.LUID != nil {
		d.LUID = *raw.LUID
	}
	for _, err := range raw.Unread {
		d.Notes = append(d.Notes, "not all about it could be read: "+oneLine(err.Error()))
	}
	if raw.Status == 0 && raw.Problem == 0 {
		d.Notes = append(d.Notes, "Windows does not say whether it is started")
	}

	d.Health.Reason = unable(raw)
	if d.Health.OK() && raw.DriverKey == "" {
		d.Health.Reason = "it has no driver: install the manufacturer's"
	}
	unknown := describe(&d, raw, adapter, says)
	if d.Software {
		return d
	}
	addDriver(&d, raw)
	if d.Health.OK() {
		d.Health.Reason = unknown
	}
	if d.Health.OK() && d.LocationPath == "" {
		d.Health = discovery.Health{
			Reason:     "it has no location path, by which a container is given a device: use a GPU that has one, as those on a PCI bus do",
			ByPathOnly: true,
		}
	}
	if d.InstanceID == "" {
		d.Health.ByPathOnly = false
		d.Health.Reason = "Windows does not say its instance ID, by which it would be found again: restart Windows"
	}
	return d
}

// addDriver adds where the driver's files are and which of them a container is
// given.
func addDriver(d *discovery.Device, raw Raw) {
	folder, note, err := driverStore(raw)
	d.DriverStorePath = folder
	if note != "" {
		d.Notes = append(d.Notes, note)
	}
	if err != nil && d.Health.OK() {
		d.Health.Reason = err.Error()
	}
	// A container that lacks files for this would start, and not work.
	if raw.ValuesErr != nil && d.Health.OK() {
		d.Health.Reason = "which files its driver has for containers cannot be read (" + oneLine(raw.ValuesErr.Error()) + "): it is tried again; if it stays so, reinstall the driver"
	}
	var notes []string
	d.System32, notes = runtimeFiles(raw.Values, system32Keys()...)
	d.Notes = append(d.Notes, notes...)
	d.SysWOW64, notes = runtimeFiles(raw.Values, sysWOW64Keys()...)
	d.Notes = append(d.Notes, notes...)
}

// describe adds what DXCore says of the device, or what stands in for it. The
// answer is why the device, though it runs, is of no use, "" when it is of use.
func describe(d *discovery.Device, raw Raw, adapter *Adapter, says dxcore) string {
	runs := d.Health.OK()
	d.Software = isBasicRender(raw.InstanceID)
	switch {
	case adapter != nil:
		addAdapter(d, *adapter)
		return ""
	case d.Software:
		return ""
	case runs && says.err == nil && (raw.LUID != nil || !says.spare):
		return "DXCore does not know it, so its driver is none for Direct3D, or runs it without: if it is a GPU, install the manufacturer's driver, and take it out of TCC mode"
	case runs && says.err == nil:
		d.Notes = append(d.Notes, "which of DXCore's adapters it is is not known: what it supports is taken from its setup class, and its memory and whether it is integrated or detachable are not known")
	case runs && errors.Is(says.err, errNotAsked):
	case runs:
		d.Notes = append(d.Notes, "DXCore says nothing ("+oneLine(says.err.Error())+"): what it supports is taken from its setup class, and its memory and whether it is integrated or detachable are not known")
	}
	switch {
	case d.LocationPath == "":
		// A virtual adapter, or one of Windows' own: nobody could be given it.
	case raw.Class.is(ClassComputeAccelerator):
		d.SupportsCompute = true
	case !raw.Class.is(ClassDisplay):
	case raw.DriverKey != "" && raw.Problem != problemNoDriver && raw.ValuesErr == nil && !hasUserModeDriver(raw.Values):
		return "it has no user-mode driver, so its driver is none for Direct3D: if it is a GPU, install the manufacturer's driver"
	default:
		d.SupportsDisplay = true
		if runs {
			d.Notes = append(d.Notes, "whether it is capable of Direct3D 12 core compute is not known")
		}
	}
	return ""
}

// addAdapter adds what DXCore says of an adapter.
func addAdapter(d *discovery.Device, a Adapter) {
	d.LUID = a.LUID
	d.Description = cmp.Or(d.Description, display(a.Description))
	d.Software = d.Software || !a.Hardware
	d.Integrated, d.Detachable = a.Integrated, a.Detachable
	d.DedicatedMemory = a.DedicatedMemory
	d.SupportsDisplay = a.D3D11Graphics || a.D3D12Graphics
	d.SupportsCompute = a.D3D12CoreCompute
	if !d.SupportsDisplay && !d.SupportsCompute {
		d.Notes = append(d.Notes, "by DXCore it supports neither Direct3D graphics nor core compute")
	}
	for _, err := range a.Unread {
		d.Notes = append(d.Notes, "not all that DXCore knows of it could be read: "+oneLine(err.Error()))
	}
}

// deviceless returns the device for an adapter of DXCore's that Plug and Play has
// none for.
func deviceless(a Adapter) discovery.Device {
	d := discovery.Device{InstanceID: `DXCORE\` + a.LUID.String()}
	addAdapter(&d, a)
	if !d.Software {
		d.SupportsDisplay, d.SupportsCompute = false, false
		d.Health.Reason = "DXCore knows this adapter, and Plug and Play has no device with its LUID, so no container can be given it: if it stays so, restart Windows"
	}
	return d
}

// is compares GUIDs, which are also written in capitals.
func (c Class) is(other Class) bool { return strings.EqualFold(string(c), string(other)) }

// isBasicRender tells Microsoft's software renderer, also where there is no
// DXCore to tell it.
func isBasicRender(instanceID string) bool {
	const prefix = `ROOT\BASICRENDER\`
	return len(instanceID) >= len(prefix) && strings.EqualFold(instanceID[:len(prefix)], prefix)
}

// vendor returns the vendor by the device's PCI IDs. Where the instance ID has
// none, such as below a bus of its own, a hardware ID may.
func vendor(raw Raw) discovery.VendorID {
	for _, id := range append([]string{raw.InstanceID}, raw.HardwareIDs...) {
		if v := discovery.PCIVendor(id); v != 0 {
			return v
		}
	}
	return 0
}

// maxNUMANode is the highest node number there is: Windows counts them in a
// USHORT, and has larger numbers where it does not know.
const maxNUMANode = 0xFFFE

func numaNode(node *uint32) *int {
	if node == nil || *node > maxNUMANode {
		return nil
	}
	n := int(*node)
	return &n
}

func byPlace(a, b discovery.Device) int {
	return cmp.Or(
		cmp.Compare(flag(a.Kind() == discovery.KindNone), flag(b.Kind() == discovery.KindNone)),
		comparePlace(a.BusNumber, b.BusNumber),
		comparePlace(a.Address, b.Address),
		cmp.Compare(a.InstanceID, b.InstanceID),
	)
}

// comparePlace puts what is not known behind what is.
func comparePlace(a, b *uint32) int {
	if a == nil || b == nil {
		return cmp.Compare(flag(a == nil), flag(b == nil))
	}
	return cmp.Compare(*a, *b)
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}
