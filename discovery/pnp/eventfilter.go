package pnp

import (
	"strings"

	"directx-nri/internal/win32"
)

// mayBeGPU reports whether an event may concern a GPU.
//
// Interface events always do. Instance events do not say what the device is, and
// Windows adds and removes disks and network adapters for each container, so only
// those of the buses of GPUs count: a GPU that is disabled or has no driver has no
// interface.
func mayBeGPU(e win32.NotifyEvent) bool {
	if e.Interface != (win32.GUID{}) || e.Name == "" {
		return true
	}
	bus, _, _ := strings.Cut(e.Name, `\`)
	return strings.EqualFold(bus, "PCI") || strings.EqualFold(bus, "ACPI")
}
