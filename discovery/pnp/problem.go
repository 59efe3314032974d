package pnp

import "fmt"

// Bits of [Raw].Status.
// https://learn.microsoft.com/windows/win32/api/cfgmgr32/nf-cfgmgr32-cm_get_devnode_status
const (
	statusStarted    = 0x00000008 // DN_STARTED
	statusHasProblem = 0x00000400 // DN_HAS_PROBLEM
)

// problemNoDriver is CM_PROB_FAILED_INSTALL.
const problemNoDriver = 28

type problem struct{ cause, remedy string }

// problemOf returns the cause and remedy of a CM_PROB_ code.
// https://learn.microsoft.com/windows-hardware/drivers/install/device-manager-error-messages
func problemOf(code uint32) problem {
	reinstall, restart, look := "reinstall its driver", "restart Windows", "see the device in Device Manager"
	switch code {
	case 1: // CM_PROB_NOT_CONFIGURED
		return problem{"it is not configured", reinstall}
	case 3: // CM_PROB_OUT_OF_MEMORY
		return problem{"its driver is damaged, or Windows is short of memory", "free memory or " + reinstall}
	case 10: // CM_PROB_FAILED_START
		return problem{"it cannot start", "update or " + reinstall}
	case 12: // CM_PROB_NORMAL_CONFLICT
		return problem{"it finds no free resources", "give the firmware more room for PCI devices, or remove another device"}
	case 14: // CM_PROB_NEED_RESTART
		return problem{"it needs a restart of Windows", restart}
	case 16: // CM_PROB_PARTIAL_LOG_CONF
		return problem{"not all of its resources are known", look}
	case 18: // CM_PROB_REINSTALL
		return problem{"its driver must be reinstalled", reinstall}
	case 19: // CM_PROB_REGISTRY
		return problem{"its settings in the registry are damaged", "remove the device in Device Manager and " + restart}
	case 21: // CM_PROB_WILL_BE_REMOVED
		return problem{"Windows is removing it", "wait, then scan for hardware changes"}
	case 22: // CM_PROB_DISABLED
		return problem{"it is disabled", "enable it in Device Manager or with pnputil /enable-device"}
	case 24: // CM_PROB_DEVICE_NOT_THERE
		return problem{"it is missing, does not work, or lacks a part of its driver", "check the hardware, then " + reinstall}
	case problemNoDriver:
		return problem{"it has no driver", "install the manufacturer's driver"}
	case 29: // CM_PROB_HARDWARE_DISABLED
		return problem{"the firmware gave it no resources", "enable it in the firmware's set-up"}
	case 31: // CM_PROB_FAILED_ADD
		return problem{"Windows cannot load its drivers", "update or " + reinstall}
	case 32: // CM_PROB_DISABLED_SERVICE
		return problem{"its driver's service is disabled", reinstall}
	case 37: // CM_PROB_FAILED_DRIVER_ENTRY
		return problem{"its driver failed to load", "update or " + reinstall}
	case 38: // CM_PROB_DRIVER_FAILED_PRIOR_UNLOAD
		return problem{"an earlier load of its driver is still in memory", restart}
	case 39: // CM_PROB_DRIVER_FAILED_LOAD
		return problem{"its driver cannot be loaded", "update or " + reinstall}
	case 43: // CM_PROB_FAILED_POST_START
		return problem{"its driver stopped it because it reported a failure", "restart Windows, then update the driver; if it fails again, the hardware may be defective"}
	case 44: // CM_PROB_HALTED
		return problem{"a program or a service stopped it", restart}
	case 45: // CM_PROB_PHANTOM
		return problem{"it is not connected", "connect it"}
	case 46: // CM_PROB_SYSTEM_SHUTDOWN
		return problem{"Windows is shutting down", "wait until Windows is back"}
	case 47: // CM_PROB_HELD_FOR_EJECT
		return problem{"it was prepared for removal", "unplug it and plug it in again, or " + restart}
	case 48: // CM_PROB_DRIVER_BLOCKED
		return problem{"Windows blocks its driver", "install a newer driver"}
	case 49: // CM_PROB_REGISTRY_TOO_LARGE
		return problem{"the registry is larger than its limit", "remove devices that are no longer used"}
	case 51: // CM_PROB_WAITING_ON_DEPENDENCY
		return problem{"it waits for another device", look}
	case 52: // CM_PROB_UNSIGNED_DRIVER
		return problem{"its driver is not signed", "install a signed driver"}
	case 53: // CM_PROB_USED_BY_DEBUGGER
		return problem{"the kernel debugger uses it", "end kernel debugging"}
	case 54: // CM_PROB_DEVICE_RESET
		return problem{"it failed and is being reset", "wait; if this persists, " + restart}
	case 56: // CM_PROB_NEED_CLASS_CONFIG
		return problem{"it is still being set up", "wait"}
	case 57: // CM_PROB_GUEST_ASSIGNMENT_FAILED
		return problem{"it could not be assigned to a virtual machine", look}
	}
	return problem{"Windows reports a problem with it", look}
}

// pnpProblem returns why Plug and Play has not started the device, "" if it has.
func pnpProblem(raw Raw) string {
	switch {
	case raw.Problem != 0:
		p := problemOf(raw.Problem)
		return fmt.Sprintf("%s (problem code %d): %s", p.cause, raw.Problem, p.remedy)
	case raw.Status&statusHasProblem != 0:
		return "Windows reports a problem without a code: see the device in Device Manager"
	case raw.Status != 0 && raw.Status&statusStarted == 0:
		return "it is not started: see the device in Device Manager"
	}
	return ""
}
