package pnp

import (
	"testing"

	"directx-nri/internal/win32"
)

func TestEventsThatConcernGPUs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		event win32.NotifyEvent
		want  bool
	}{
		"an adapter has come":         {win32.NotifyEvent{Action: win32.InterfaceArrival, Interface: win32.DisplayInterface(), Name: `\\?\ROOT#X`}, true},
		"a compute adapter has gone":  {win32.NotifyEvent{Action: win32.InterfaceRemoval, Interface: win32.ComputeInterface(), Name: `\\?\ACPI#X`}, true},
		"a PCI device was started":    {win32.NotifyEvent{Action: win32.InstanceStarted, Name: `PCI\VEN_10DE&DEV_1EB8\0`}, true},
		"in small letters":            {win32.NotifyEvent{Action: win32.InstanceStarted, Name: `pci\ven_10de&dev_1eb8\0`}, true},
		"one of the board's":          {win32.NotifyEvent{Action: win32.InstanceRemoved, Name: `ACPI\QCOM0A36\0`}, true},
		"it could not be read":        {win32.NotifyEvent{Action: win32.InstanceRemoved}, true},
		"a container's disk":          {win32.NotifyEvent{Action: win32.InstanceStarted, Name: `SCSI\DISK&VEN_MSFT\0`}, false},
		"a container's network":       {win32.NotifyEvent{Action: win32.InstanceEnumerated, Name: `ROOT\VMS_MP\0001`}, false},
		"another bus of like letters": {win32.NotifyEvent{Action: win32.InstanceStarted, Name: `PCIIDE\IDECHANNEL\0`}, false},
	} {
		if got := concernsGPUs(test.event); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}

func TestClassesAreTheSameInBothForms(t *testing.T) {
	t.Parallel()
	for class, guid := range map[Class]win32.GUID{ClassDisplay: win32.DisplayClass(), ClassComputeAccelerator: win32.ComputeAcceleratorClass()} {
		if guid.String() != string(class) {
			t.Errorf("%s and %s", class, guid)
		}
	}
}
