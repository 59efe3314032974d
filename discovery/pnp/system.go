// Package pnp finds the GPUs of a Windows node with Plug and Play, the registry, the
// driver store and DXCore.
//
// [Open] reads a [Snapshot] of Windows, and [Devices] returns the devices in it, which is also built and
// tested on Linux.
package pnp

import (
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/win32"
)

// Snapshot is the state of Windows at one moment.
type Snapshot struct {
	// Devices are the present devices of both classes, in Windows' order.
	Devices []Properties
	// Adapters are DXCore's adapters.
	Adapters []win32.Adapter
	// DXCoreErr is why DXCore is not available and Adapters is empty. Windows has DXCore from
	// Windows 10 version 2004 and Windows Server 2022 on.
	DXCoreErr error
}

// Properties are the properties of a device. A property that the device does not have, or that could
// not be read, is the zero value or nil.
type Properties struct {
	InstanceID string
	// ComputeClass reports that the device has an MCDM driver, as neural processors and GPUs without
	// graphics do. Others have a WDDM driver.
	ComputeClass  bool
	Description   string   // DEVPKEY_Device_DeviceDesc
	HardwareIDs   []string // DEVPKEY_Device_HardwareIds
	LocationPaths []string // DEVPKEY_Device_LocationPaths
	LUID          discovery.LUID
	// DriverKey is the driver's key below HKLM\SYSTEM\CurrentControlSet\Control\Class,
	// such as `{4d36e968-e325-11ce-bfc1-08002be10318}\0001`: DEVPKEY_Device_Driver.
	DriverKey           string
	DriverVersion       string // DEVPKEY_Device_DriverVersion
	NUMANode, BusNumber *uint32
	// Address has, on PCI, the device number in the upper 16 bits and the function in the lower.
	Address *uint32
	// Status is a set of DN_ bits, Problem a CM_PROB_ code or 0.
	// https://learn.microsoft.com/windows/win32/api/cfgmgr32/nf-cfgmgr32-cm_get_devnode_status
	Status, Problem uint32
	// Values are the values of the driver key with names of files: those of the user-mode driver
	// (Subkey "") and all values of the subkeys of runtime files.
	// https://learn.microsoft.com/windows-hardware/drivers/display/container-non-dx
	Values []win32.RegistryValue
	// ValuesErr is why Values is incomplete.
	ValuesErr error
	// PackageDir is the directory of the driver package with the INF in the driver store.
	PackageDir string
	// PackageDirErr is why PackageDir is unknown.
	PackageDirErr error
	// ReadErrors are the errors of properties that could not be read.
	ReadErrors []error
}
