package ocispec

import (
	"path"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/internal/winpath"
)

// Types of windows.devices that hcsshim assigns GPUs by.
// https://github.com/opencontainers/runtime-spec/blob/main/config-windows.md#devices
const (
	// IDTypeLocationPath is one device by its PCIe location path.
	IDTypeLocationPath = "vpci-location-path"
	// IDTypeClass and IDTypeClassGUID are all devices of an interface class. The
	// specification and all versions of hcsshim have the first, and some versions also the second.
	// https://github.com/microsoft/hcsshim/blob/v0.15.0/internal/uvm/virtual_device.go
	IDTypeClass     = "class"
	IDTypeClassGUID = "vpci-class-guid"
)

// DisplayClass is the interface class of GPUs. It assigns all GPUs of the node.
// https://learn.microsoft.com/virtualization/windowscontainers/deploy-containers/gpu-acceleration
const DisplayClass = "5B45201D-F2F2-4F3B-85BB-30FF1F953599"

// Edits are changes to a container. Removals precede additions. The names of the fields
// in JSON are stable.
type Edits struct {
	// RemoveMounts are destinations of mounts to remove.
	RemoveMounts []string `json:"removeMounts,omitempty"`
	// RemoveWindowsDevices are Windows devices to remove.
	RemoveWindowsDevices []specs.WindowsDevice `json:"removeWindowsDevices,omitempty"`

	// Env has NAME=value; each replaces the container's environment variable of that name.
	Env            []string              `json:"env,omitempty"`
	WindowsDevices []specs.WindowsDevice `json:"windowsDevices,omitempty"`
	LinuxDevices   []LinuxDevice         `json:"linuxDevices,omitempty"`
	Mounts         []specs.Mount         `json:"mounts,omitempty"`
}

// LinuxDevice is a device node of a container.
type LinuxDevice struct {
	specs.LinuxDevice
	// HostPath is the path of the device node on the node.
	HostPath string `json:"-"`
}

// ReadOnlyMount returns a mount as the runtimes expect it: runc needs a bind mount, and hcsshim
// interprets a type as a kind of disk. The bind mount is not recursive, because "ro" does not apply
// to the mounts below a directory.
func ReadOnlyMount(containerOS, source, destination string) specs.Mount {
	if containerOS == "windows" {
		return specs.Mount{Source: source, Destination: destination, Options: []string{"ro"}}
	}
	return specs.Mount{
		Source: source, Destination: destination, Type: "bind", Options: []string{"bind", "ro", "rprivate", "nosuid", "nodev"},
	}
}

// DestinationKey returns a string that is the same for all spellings of a destination in a
// container, and differs for different destinations.
func DestinationKey(containerOS, destination string) string {
	if containerOS == "windows" {
		separators := len(destination) - len(strings.TrimLeft(destination, `/\`))
		if separators == 1 { // \x is on the system drive. \\x is a share or a device.
			destination = "C:" + destination
		}
		return winpath.Key(destination)
	}
	return path.Clean("/" + destination)
}

// LookupEnv returns the value of the environment variable name in env, the last one if there are
// several, and reports whether there is one. Windows ignores the case of names.
func LookupEnv(containerOS string, env []string, name string) (value string, found bool) {
	for _, variable := range env {
		n, v, ok := strings.Cut(variable, "=")
		if ok && (n == name || containerOS == "windows" && strings.EqualFold(n, name)) {
			value, found = v, true
		}
	}
	return value, found
}
