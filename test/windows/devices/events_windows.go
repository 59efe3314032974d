package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/windows"

	"directx-nri/test/windows/hardware"
)

// event is a line for the double of cfgmgr32.dll: ../doubles/cfgmgr32.c.
type event string

// action is a CM_NOTIFY_ACTION.
// https://learn.microsoft.com/windows/win32/api/cfgmgr32/ne-cfgmgr32-cm_notify_action
type action int

const (
	interfaceArrival   action = 0
	interfaceRemoval   action = 1
	instanceEnumerated action = 7
	instanceStarted    action = 8
	instanceRemoved    action = 9
)

// Interfaces that the graphics kernel registers for adapters.
// https://learn.microsoft.com/windows-hardware/drivers/install/guid-display-device-arrival
const (
	displayArrival = "{1ca05180-a699-450a-9a0c-de4fbe3ddd89}"
	computeArrival = "{1024e4c9-47c9-48d3-b4a8-f9df78523b53}"
)

func instanceEvent(a action, id string) event { return event(fmt.Sprintf("%d 0 %s\n", a, id)) }

// interfaceEvent returns the event of the interface of a device of that class.
func interfaceEvent(a action, class, id string) event {
	guid := displayArrival
	if strings.EqualFold(class, hardware.ClassComputeAccelerator) {
		guid = computeArrival
	}
	link := `\\?\` + strings.ReplaceAll(id, `\`, "#") + "#" + guid
	return event(fmt.Sprintf("%d %s %s\n", a, guid, link))
}

// report makes the double report events, if a process has loaded it.
func report(events []event) (err error) {
	var lines strings.Builder
	for _, e := range events {
		lines.WriteString(string(e))
	}
	f, err := os.OpenFile(`C:\notify.txt`, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(lines.String())
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	name, err := windows.UTF16PtrFromString("directx-nri-notify")
	if err != nil {
		return err
	}
	happened, err := windows.OpenEvent(windows.EVENT_MODIFY_STATE, false, name)
	if errors.Is(err, windows.ERROR_FILE_NOT_FOUND) {
		return nil // No process has loaded it.
	}
	if err != nil {
		return fmt.Errorf("OpenEvent: %w", err)
	}
	return errors.Join(windows.SetEvent(happened), windows.CloseHandle(happened))
}
