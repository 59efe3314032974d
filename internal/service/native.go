package service

import (
	"fmt"
	"strings"

	"github.com/directx-nri/directx-nri/internal/winpath"
)

// checkNative returns an error unless the command line of a Windows service runs containerd.exe
// itself. A wrapper such as nssm sends Ctrl-C to every process of the service's console when the
// service stops. containerd starts shims in its own console, and containerd-shim-runhcs-v1 does not
// handle Ctrl-C, so a restart would end every container of the node (nssm's process.cpp,
// containerd's pkg/shim/util_windows.go).
func checkNative(service, commandLine string) error {
	program := programOf(commandLine)
	if winpath.IsAbs(program) && strings.EqualFold(winpath.Base(program), "containerd.exe") {
		return nil
	}
	return fmt.Errorf("containerd is not a native service: the service %s runs %s, and its restart can stop every container of this node, this one included. "+
		"Leave out --restart (in the chart: windows.restart=onReboot), and reboot the node; or set injection: kubelet, which needs no restart", service, program)
}

// programOf returns the program of a command line. A path without quotation marks
// can have spaces, so it ends with the first .exe before a space.
func programOf(commandLine string) string {
	if quoted, ok := strings.CutPrefix(commandLine, `"`); ok {
		program, _, _ := strings.Cut(quoted, `"`)
		return program
	}
	for i, r := range commandLine + " " {
		if r == ' ' && strings.HasSuffix(strings.ToLower(commandLine[:i]), ".exe") {
			return commandLine[:i]
		}
	}
	return commandLine
}
