package pnp

import (
	"strings"

	"directx-nri/internal/win32"
)

// concernsGPUs tells whether an event may be a GPU's.
//
// The graphics kernel registers an interface of its classes for each adapter that
// runs, so those events always are. An instance's event does not say what the
// device is, and Windows makes and unmakes devices for each container (disks,
// volumes, network adapters): only the buses count that GPUs are found on, as a
// GPU without a driver, or a disabled one, has no interface. What is neither told
// nor on these buses is found by the next poll.
func concernsGPUs(e win32.NotifyEvent) bool {
	if e.Interface != (win32.GUID{}) || e.Name == "" {
		return true
	}
	bus, _, _ := strings.Cut(e.Name, `\`)
	return strings.EqualFold(bus, "PCI") || strings.EqualFold(bus, "ACPI")
}
