package pnp

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/win32"
)

// Devices returns all devices of s, including those that cannot be used, with the reason.
//
// DXCore determines the kind of a device: display with Direct3D 11 or 12 graphics, compute with
// core compute or machine learning alone. The setup class determines the kind of devices that have not
// started, which DXCore does not list, and of all devices if DXCore is not available. A started
// device that DXCore does not list has no kind: it is a frame buffer, which many virtual machines
// have beside their GPUs, or a GPU whose driver runs without Direct3D, such as NVIDIA's in TCC mode.
//
// Devices are in the order of their bus and address, so that only changes of hardware change the
// order. Devices without an address follow by instance ID, and devices of no kind come last.
func Devices(s Snapshot) []discovery.Device {
	adapters := map[discovery.LUID]*win32.Adapter{}
	for _, a := range s.Adapters {
		if a.LUID != 0 {
			adapters[discovery.LUID(a.LUID)] = &a
		}
	}
	matched := map[discovery.LUID]bool{}
	for _, p := range s.Devices {
		matched[p.LUID] = p.LUID != 0 // An adapter without a LUID has no known device.
	}
	// An adapter without a device may be that of a device whose LUID is unknown.
	unmatched := slices.ContainsFunc(s.Adapters, func(a win32.Adapter) bool {
		return !matched[discovery.LUID(a.LUID)] && (a.Hardware || len(a.ReadErrors) > 0)
	})
	var devices []discovery.Device
	for _, p := range s.Devices {
		unknown := ""
		switch {
		case s.DXCoreErr != nil:
			unknown = "DXCore is not available (" + errlog.Text(s.DXCoreErr) + ")"
		case p.LUID == 0 && unmatched:
			unknown = "its DXCore adapter is unknown"
		}
		devices = append(devices, newDevice(p, adapters[p.LUID], unknown))
	}
	slices.SortStableFunc(devices, compareAddresses)
	return devices
}

// newDevice returns the device with the properties p and, unless it is nil, the DXCore adapter. unknown is why
// the adapter is unknown, "" if the device has none.
func newDevice(p Properties, adapter *win32.Adapter, unknown string) discovery.Device {
	d := discovery.Device{
		InstanceID: p.InstanceID, LUID: p.LUID, Description: errlog.OneLine(p.Description),
		VendorID: vendor(p), DriverVersion: errlog.OneLine(p.DriverVersion),
		NUMANode: numaNode(p.NUMANode), BusNumber: p.BusNumber, Address: p.Address,
	}
	if len(p.LocationPaths) > 0 {
		d.LocationPath = p.LocationPaths[0]
	}
	for _, err := range p.ReadErrors {
		d.Notes = append(d.Notes, "failed to read a property: "+errlog.Text(err))
	}
	if p.Status == 0 && p.Problem == 0 {
		d.Notes = append(d.Notes, "whether it is started is unknown")
	}

	d.Health.Reason = whyNotStarted(p)
	if d.Health.OK() && p.DriverKey == "" {
		d.Health.Reason = "it has no driver: install the manufacturer's"
	}
	noDirect3D := ""
	d.Software = strings.HasPrefix(discovery.NormalizeID(p.InstanceID), `ROOT\BASICRENDER\`) // Microsoft's
	started := d.Health.OK()
	switch {
	case adapter != nil:
		addAdapter(&d, *adapter)
	case d.Software: // It is never offered.
	case started && unknown == "":
		noDirect3D = "DXCore does not list it, so it cannot run Direct3D: if it is a GPU, install the manufacturer's driver and switch off TCC mode"
	default:
		noDirect3D = setKindByClass(&d, p)
		if started {
			d.Notes = append(d.Notes, unknown+": what it supports is taken from its setup class; its memory and whether it is integrated or detachable are unknown")
		}
	}
	if d.Software {
		return d
	}
	addDriver(&d, p)
	if d.Health.OK() {
		d.Health.Reason = noDirect3D
	}
	return d
}

// addDriver adds the driver's directory and its runtime files.
func addDriver(d *discovery.Device, p Properties) {
	dir, note, err := driverStore(p)
	d.DriverStorePath = dir
	if note != "" {
		d.Notes = append(d.Notes, note)
	}
	if err != nil && d.Health.OK() {
		d.Health.Reason = err.Error()
	}
	// With an incomplete list, containers would start and not work.
	if p.ValuesErr != nil && d.Health.OK() {
		d.Health.Reason = "the list of its runtime files cannot be read (" + errlog.Text(p.ValuesErr) +
			"); if retries do not help, reinstall the driver"
	}
	var notes []string
	d.System32, notes = runtimeFiles(p.Values, system32Keys()...)
	d.Notes = append(d.Notes, notes...)
	d.SysWOW64, notes = runtimeFiles(p.Values, sysWOW64Keys()...)
	d.Notes = append(d.Notes, notes...)
}

// setKindByClass sets the kind of a device whose adapter is unknown, by its setup class. It returns
// why the device cannot run Direct3D, "" if it may.
func setKindByClass(d *discovery.Device, p Properties) string {
	switch {
	case d.LocationPath == "":
		// A virtual adapter, which cannot be assigned.
	case p.ComputeClass:
		d.SupportsCompute = true
	case p.DriverKey != "" && p.Problem != problemNoDriver && p.ValuesErr == nil && len(userModeFiles(p.Values)) == 0:
		return "it has no user-mode driver, so it cannot run Direct3D: if it is a GPU, install the manufacturer's driver"
	default:
		d.SupportsDisplay = true
	}
	return ""
}

// addAdapter adds the properties of a DXCore adapter.
func addAdapter(d *discovery.Device, a win32.Adapter) {
	d.Description = cmp.Or(d.Description, errlog.OneLine(a.Description))
	d.Software = d.Software || !a.Hardware
	d.Integrated, d.Detachable = a.Integrated, a.Detachable
	d.DedicatedMemory = a.DedicatedMemory
	d.SupportsDisplay, d.SupportsCompute = a.Graphics, a.Compute || a.MachineLearning
	d.MachineLearningOnly = a.MachineLearning && !a.Compute && !a.Graphics
	for _, err := range a.ReadErrors {
		d.Notes = append(d.Notes, "failed to read a DXCore property: "+errlog.Text(err))
	}
}

// vendor returns the vendor in the device's PCI IDs. The instance ID has none below
// buses such as VPCI.
func vendor(p Properties) pci.Vendor {
	for _, id := range append([]string{p.InstanceID}, p.HardwareIDs...) {
		if v := pci.VendorOf(id); v != 0 {
			return v
		}
	}
	return 0
}

// numaNode returns the number of a NUMA node, nil if it is unknown: Windows' numbers end at 0xFFFE,
// and larger values mean that the node is unknown.
func numaNode(node *uint32) *int {
	if node == nil || *node > 0xFFFE {
		return nil
	}
	return new(int(*node))
}

// compareAddresses compares devices by bus and address, and then by instance ID. Devices of no kind
// come last.
func compareAddresses(a, b discovery.Device) int {
	key := func(d discovery.Device) []uint64 {
		keys := []uint64{0, math.MaxUint64, math.MaxUint64} // Unknown numbers are last.
		if d.Kind() == discovery.KindNone {
			keys[0] = 1
		}
		for i, n := range []*uint32{d.BusNumber, d.Address} {
			if n != nil {
				keys[i+1] = uint64(*n)
			}
		}
		return keys
	}
	return cmp.Or(slices.Compare(key(a), key(b)), cmp.Compare(a.InstanceID, b.InstanceID))
}
