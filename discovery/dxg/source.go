//go:build linux

// Package dxg finds the GPUs of a Linux VM with GPU paravirtualization (WSL 2, Hyper-V)
// by the requests of /dev/dxg, as Microsoft's header describes them. It needs neither
// cgo nor libdxcore.
//
// If the kernel or the host refuses a query, the property is empty: machines that work refuse many
// queries. An adapter that is gone, or no longer answers the query of its type, is unhealthy and keeps
// its last properties. An adapter that never answered has no kind, so it is not advertised.
//
// # Identity
//
// A device's instance ID consists of the model, as in
// `PCI\VEN_10DE&DEV_2684&SUBSYS_16F110DE&REV_A1`, and a unit. The unit is the address on the host's
// PCI bus if the host reports it, 0 for the only adapter of a model, and otherwise the LUID.
//
// The LUID in a VM is the start of the VMBus channel's ID. It is not the LUID of the host's
// adapter, which no request returns (dxgglobal_create_adapter in dxgmodule.c). It can change when
// the VM or the host's driver restarts, and equal GPUs can then exchange their IDs. This does no
// harm: no container survives a restart of the VM, and an ID never names a GPU of another model. An
// allocation record of an ID that no longer exists matches no GPU, and its container is refused
// until the pod is replaced.
//
// While a program runs, an adapter keeps its ID. If it fails, an adapter that works and has the same
// model and unit, such as the same GPU with a new LUID, takes over the ID.
package dxg

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/internal/pci"
)

// DefaultDevice is the driver's device node, also in containers.
const DefaultDevice = "/dev/dxg"

// ErrNoDevice reports that the system has no driver of GPU paravirtualization.
var ErrNoDevice = errors.New("no GPU: " + DefaultDevice + " does not exist")

// wslDir is the directory of the user-mode drivers, which Microsoft's libdxcore.so requires.
const wslDir = "/usr/lib/wsl"

// Source lists the GPUs behind /dev/dxg. Create it with [Open].
type Source struct {
	*discovery.DriverSource
	root hostfiles.Root
	open func(hostfiles.Root) (driver, error)

	// known has the adapters of the last list that have answered, without a failure.
	known map[discovery.LUID]adapterProperties
}

var _ discovery.Source = (*Source)(nil)

// Open returns the source of the GPUs of the VM with this root. It reads nothing yet. If the adapters cannot be
// listed, those of the last list are unhealthy.
func Open(root hostfiles.Root) *Source {
	s := &Source{root: root, open: openDevice}
	s.DriverSource = discovery.NewDriverSource(s.readDevices)
	return s
}

// readDevices returns the devices of all adapters.
func (s *Source) readDevices(context.Context) (devices []discovery.Device, err error) {
	d, err := s.open(s.root)
	if errors.Is(err, fs.ErrNotExist) {
		err = ErrNoDevice
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	adapters, err := openAdapters(d)
	if err != nil {
		return nil, err
	}
	var all []adapterProperties
	for _, adapter := range adapters {
		// A known adapter is read only once, because its properties change with the LUID only, and the
		// driver logs each refused query.
		a, isKnown := s.known[adapter.luid.value()]
		if isKnown {
			a.failure = checkAdapter(d, adapter, a)
		} else {
			a = readProperties(d, adapter)
		}
		all = append(all, a)
	}
	slices.SortStableFunc(all, func(a, b adapterProperties) int { return cmp.Compare(a.luid, b.luid) })
	all = slices.CompactFunc(all, func(a, b adapterProperties) bool { return a.luid == b.luid })
	setInstanceIDs(all)
	files, known := readLibraries(s.root), map[discovery.LUID]adapterProperties{}
	devices = []discovery.Device{}
	for _, a := range all {
		devices = append(devices, a.newDevice(files))
		if _, isKnown := s.known[a.luid]; isKnown || a.failure == nil {
			a.failure = nil
			known[a.luid] = a
		}
	}
	s.known = known
	slices.SortStableFunc(devices, compareByPreference)
	return devices, nil
}

// compareByPreference compares two devices of a VM. The preferred one comes first, because on a tie
// the first GPU is allocated. Software renderers and integrated GPUs come last. Only hybrid systems
// mark integrated GPUs, so the next criteria are the dedicated memory and, where the host does not
// report it, whether the vendor makes mostly discrete GPUs. The LUID is the last criterion, because
// it is random.
func compareByPreference(a, b discovery.Device) int {
	maybeIntegrated := func(d discovery.Device) bool {
		return d.VendorID != pci.VendorNVIDIA && d.VendorID != pci.VendorAMD
	}
	return cmp.Or(rank(a.Software)-rank(b.Software), rank(a.Integrated)-rank(b.Integrated),
		cmp.Compare(b.DedicatedMemory, a.DedicatedMemory),
		rank(maybeIntegrated(a))-rank(maybeIntegrated(b)), cmp.Compare(a.LUID, b.LUID))
}

// setInstanceIDs sets the instance IDs of new adapters. Equal adapters that work have their LUID as the unit: if one
// is removed, another must not have its ID after the next start of this program.
func setInstanceIDs(all []adapterProperties) {
	working := map[string]int{} // the number of working adapters, by model and PCI address
	for _, a := range all {
		if a.failure == nil {
			working[a.model()+a.pciAddress()]++
		}
	}
	taken := map[string]bool{}
	order := func(a adapterProperties) int { return 2*rank(a.failure != nil) + rank(a.instanceID == "") }
	slices.SortStableFunc(all, func(a, b adapterProperties) int { return order(a) - order(b) })
	for i := range all {
		a := &all[i]
		unit := cmp.Or(a.pciAddress(), "0")
		if working[a.model()+a.pciAddress()] > 1 || a.model()+a.pciAddress() == unknownModel {
			unit = a.luid.String()
		}
		a.instanceID = cmp.Or(a.instanceID, a.model()+`\`+unit)
		if taken[a.instanceID] {
			a.instanceID = a.model() + `\` + a.luid.String()
		}
		taken[a.instanceID] = true
	}
}

func rank(last bool) int {
	if last {
		return 1
	}
	return 0
}
