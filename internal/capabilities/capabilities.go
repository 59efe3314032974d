// Package capabilities reports what this Windows supports for GPUs in containers.
package capabilities

import (
	"fmt"

	"directx-nri/internal/policy"
	"directx-nri/internal/win32"
)

// firstBuild is the first Windows build whose Host Compute Service (HCS) assigns
// single devices to containers: Windows Server 2022.
// https://learn.microsoft.com/virtualization/windowscontainers/deploy-containers/hardware-devices-in-containers
const firstBuild = 20348

// Capabilities are those of a Windows.
type Capabilities struct {
	Windows win32.Version `json:"windows"`
	// HCSErr is why HCS does not answer. It matches [errors.ErrUnsupported] if there is
	// no HCS: the Windows feature Containers is not installed.
	HCSErr error `json:"hcsError,omitempty"`
}

// Assignment is how containers are assigned devices.
type Assignment struct {
	// Mode is [policy.AssignByPath] for single devices, or [policy.AssignByClass] for
	// all GPUs of the node.
	Mode policy.Assignment `json:"assignment"`
	// Reason is one line.
	Reason string `json:"reason"`
}

// ByClass reports whether containers get all GPUs of the node, by their class.
func (a Assignment) ByClass() bool { return a.Mode == policy.AssignByClass }

// Resolve returns how containers are assigned devices if the configured mode is mode.
// os is the operating system of the containers, and build the number of Windows, 0 on a
// Linux machine that stands in for a Windows node.
func Resolve(mode policy.Assignment, os string, build uint32) Assignment {
	switch {
	case os != "windows":
		return Assignment{policy.AssignByPath, "Linux containers get single devices, by their device nodes"}
	case mode == policy.AssignByPath:
		return Assignment{mode, fmt.Sprintf("assignmentMode is %s", mode)}
	case mode == policy.AssignByClass:
		return Assignment{mode, fmt.Sprintf("assignmentMode is %s: containers get all GPUs of the node", mode)}
	case build == 0:
		return Assignment{policy.AssignByPath, "the default, because this is not Windows"}
	case build < firstBuild:
		return Assignment{policy.AssignByClass, fmt.Sprintf("Windows build %d cannot assign single devices, which requires %d (Windows Server 2022): containers get all GPUs of the node", build, firstBuild)}
	}
	return Assignment{policy.AssignByPath, fmt.Sprintf("Windows build %d assigns single devices, as all builds since %d do", build, firstBuild)}
}
