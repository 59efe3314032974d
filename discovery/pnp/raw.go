// Package pnp finds the GPUs of a Windows node: by what Plug and Play, the
// registry, the driver store and DXCore say of them.
//
// What Windows says is read into a [Snapshot] by a [System] and judged by
// [Devices], which asks nobody. So all that decides something runs, and is
// tested, on any system.
package pnp

import (
	"context"

	"directx-nri/discovery"
)

// Class is a device setup class, as Windows writes its GUID.
// https://learn.microsoft.com/windows-hardware/drivers/install/system-defined-device-setup-classes-available-to-vendors
type Class string

// The classes of devices that containers can be given.
const (
	// ClassDisplay devices have a WDDM driver: GPUs.
	ClassDisplay Class = "{4d36e968-e325-11ce-bfc1-08002be10318}"
	// ClassComputeAccelerator devices have an MCDM driver: neural processors, and
	// GPUs without graphics.
	ClassComputeAccelerator Class = "{f01a9d53-3ff6-48d2-9f97-c8a7004be10c}"
)

// Snapshot is what Windows says at one moment.
type Snapshot struct {
	// Devices are the devices of both classes that are present, in Windows' order.
	Devices []Raw
	// Adapters are DXCore's. They are of no use when DXCoreErr is not nil.
	Adapters []Adapter
	// DXCoreErr is why DXCore says nothing: it is not there before Windows 10
	// version 2004 and Windows Server 2022.
	DXCoreErr error
}

// Raw is what Windows says about one device. What it does not say is the zero
// value or nil; what could not be read is in Unread too.
type Raw struct {
	InstanceID    string
	Class         Class
	Description   string   // DEVPKEY_Device_DeviceDesc
	Manufacturer  string   // DEVPKEY_Device_Manufacturer
	HardwareIDs   []string // DEVPKEY_Device_HardwareIds
	LocationPaths []string // DEVPKEY_Device_LocationPaths
	LUID          *discovery.LUID
	// DriverKey is the driver's key below HKLM\SYSTEM\CurrentControlSet\Control\Class,
	// such as `{4d36e968-e325-11ce-bfc1-08002be10318}\0001`: DEVPKEY_Device_Driver.
	DriverKey     string
	DriverVersion string // DEVPKEY_Device_DriverVersion
	INF           string // DEVPKEY_Device_DriverInfPath, such as `oem12.inf`
	NUMANode      *uint32
	BusNumber     *uint32
	// Address is the device's place on its bus: for PCI the device number in the
	// upper 16 bits and the function in the lower.
	Address *uint32
	// Status is a set of DN_ bits and Problem a CM_PROB_ code, 0 for none.
	// https://learn.microsoft.com/windows/win32/api/cfgmgr32/nf-cfgmgr32-cm_get_devnode_status
	Status, Problem uint32
	// UUID is what the driver knows the GPU by, where it was asked: see [WithUUIDs].
	UUID string
	// Values are the driver key's values that say something about files: its own
	// user-mode driver names (Subkey ""), and all those of the subkeys of runtime
	// files, in the order in which Windows enumerates them.
	// https://learn.microsoft.com/windows-hardware/drivers/display/container-non-dx
	Values []Value
	// ValuesErr is why there are not all of them.
	ValuesErr error
	// INFStore is the folder of the driver package in the driver store that INF
	// is from, by SetupGetInfDriverStoreLocation.
	INFStore string
	// INFStoreErr is why there is none.
	INFStoreErr error
	// Unread are the errors of what could not be read, each with what it was.
	Unread []error
}

// Value is a registry value.
type Value struct {
	// Subkey is the subkey of the driver key that has the value, "" for the driver
	// key's own. The registry compares it, and Name, without regard to case.
	Subkey, Name string
	// Type is one of the REG_ types.
	// https://learn.microsoft.com/windows/win32/sysinfo/registry-value-types
	Type uint32
	Data []byte
}

// Adapter is what DXCore says about an adapter.
// https://learn.microsoft.com/windows/win32/api/dxcore_interface/ne-dxcore_interface-dxcoreadapterproperty
type Adapter struct {
	LUID        discovery.LUID
	Description string
	// Hardware is false for software renderers.
	Hardware, Integrated, Detachable bool
	// D3D11Graphics, D3D12Graphics and D3D12CoreCompute are adapter attributes.
	D3D11Graphics, D3D12Graphics, D3D12CoreCompute bool
	// DedicatedMemory is in bytes.
	DedicatedMemory uint64
	// Unread are the errors of what could not be read.
	Unread []error
}

// System is the Windows that a [Source] asks. Its methods may be called by
// several goroutines at once.
type System interface {
	// Snapshot reads everything anew. One device that cannot be read does not
	// keep the others from being told.
	Snapshot(ctx context.Context) (Snapshot, error)

	// Find reads anew the devices with these instance IDs, and nothing of DXCore.
	// Those that are not present are left out.
	Find(ctx context.Context, instanceIDs []string) ([]Raw, error)

	// Notify calls changed when a device of the classes has come, gone, or was
	// started, stopped or given another driver, until ctx ends. changed must not
	// block. An error that matches [errors.ErrUnsupported] tells a Windows that
	// does not notify.
	Notify(ctx context.Context, changed func()) error
}
