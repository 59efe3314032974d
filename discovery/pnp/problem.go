package pnp

import (
	"cmp"
	"fmt"
)

// Bits of [Properties].Status.
// https://learn.microsoft.com/windows/win32/api/cfgmgr32/nf-cfgmgr32-cm_get_devnode_status
const (
	statusStarted    = 0x00000008 // DN_STARTED
	statusHasProblem = 0x00000400 // DN_HAS_PROBLEM
)

// problemNoDriver is CM_PROB_FAILED_INSTALL.
const problemNoDriver = 28

// causes are the causes of common CM_PROB_ codes.
// https://learn.microsoft.com/windows-hardware/drivers/install/device-manager-error-messages
func causes() map[uint32]string {
	return map[uint32]string{
		10: "it cannot start", 14: "it needs a restart of Windows", 22: "it is disabled", problemNoDriver: "it has no driver",
		31: "Windows cannot load its drivers", 43: "its driver stopped it because it reported a failure", 45: "it is not connected",
	}
}

// whyNotStarted returns why Plug and Play has not started the device, "" if it has.
func whyNotStarted(p Properties) string {
	switch {
	case p.Problem != 0:
		cause := cmp.Or(causes()[p.Problem], "Windows reports a problem with it")
		return fmt.Sprintf("%s (problem code %d): see the device in Device Manager", cause, p.Problem)
	case p.Status&statusHasProblem != 0:
		return "Windows reports a problem without a code: see the device in Device Manager"
	case p.Status != 0 && p.Status&statusStarted == 0:
		return "it is not started: see the device in Device Manager"
	}
	return ""
}
