package pnp

import "fmt"

// Bits of [Properties].Status.
// https://learn.microsoft.com/windows/win32/api/cfgmgr32/nf-cfgmgr32-cm_get_devnode_status
const (
	statusStarted    = 0x00000008 // DN_STARTED
	statusHasProblem = 0x00000400 // DN_HAS_PROBLEM
)

// problemNoDriver is CM_PROB_FAILED_INSTALL.
const problemNoDriver = 28

// causeAndRemedy returns the cause and remedy of a CM_PROB_ code.
// https://learn.microsoft.com/windows-hardware/drivers/install/device-manager-error-messages
func causeAndRemedy(code uint32) (cause, remedy string) {
	text, known := map[uint32][2]string{
		10:              {"it cannot start", "update or reinstall its driver"},
		12:              {"there are not enough free resources for it", "enlarge the address space for PCI devices in the firmware settings, or remove another device"},
		14:              {"it needs a restart of Windows", "restart Windows"},
		22:              {"it is disabled", "enable it in Device Manager or with pnputil /enable-device"},
		24:              {"it is missing, does not work, or lacks a part of its driver", "check the hardware, then reinstall its driver"},
		problemNoDriver: {"it has no driver", "install the manufacturer's driver"},
		31:              {"Windows cannot load its drivers", "update or reinstall its driver"},
		39:              {"its driver cannot be loaded", "update or reinstall its driver"},
		43:              {"its driver stopped it because it reported a failure", "restart Windows, then update the driver; if it fails again, the hardware may be defective"},
		45:              {"it is not connected", "connect it"},
		48:              {"Windows blocks its driver", "install a newer driver"},
		54:              {"it failed and is being reset", "wait; if this persists, restart Windows"},
	}[code]
	if !known {
		return "Windows reports a problem with it", "see the device in Device Manager"
	}
	return text[0], text[1]
}

// pnpProblem returns why Plug and Play has not started the device, "" if it has.
func pnpProblem(p Properties) string {
	switch {
	case p.Problem != 0:
		cause, remedy := causeAndRemedy(p.Problem)
		return fmt.Sprintf("%s (problem code %d): %s", cause, p.Problem, remedy)
	case p.Status&statusHasProblem != 0:
		return "Windows reports a problem without a code: see the device in Device Manager"
	case p.Status != 0 && p.Status&statusStarted == 0:
		return "it is not started: see the device in Device Manager"
	}
	return ""
}
