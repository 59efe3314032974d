package pnp

import (
	"testing"

	"directx-nri/internal/win32"
)

func TestMayBeGPU(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		event win32.NotifyEvent
		want  bool
	}{
		"adapter arrival":                {win32.NotifyEvent{Interface: win32.DisplayInterface(), Name: `\\?\ROOT#X`}, true},
		"compute adapter removal":        {win32.NotifyEvent{Interface: win32.ComputeInterface(), Name: `\\?\ACPI#X`}, true},
		"PCI device start":               {win32.NotifyEvent{Name: `PCI\VEN_10DE&DEV_1EB8\0`}, true},
		"lower case":                     {win32.NotifyEvent{Name: `pci\ven_10de&dev_1eb8\0`}, true},
		"ACPI device removal":            {win32.NotifyEvent{Name: `ACPI\QCOM0A36\0`}, true},
		"unreadable event":               {win32.NotifyEvent{}, true},
		"disk of a container":            {win32.NotifyEvent{Name: `SCSI\DISK&VEN_MSFT\0`}, false},
		"network adapter of a container": {win32.NotifyEvent{Name: `ROOT\VMS_MP\0001`}, false},
		"bus with the same prefix":       {win32.NotifyEvent{Name: `PCIIDE\IDECHANNEL\0`}, false},
	} {
		if got := mayBeGPU(test.event); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}
