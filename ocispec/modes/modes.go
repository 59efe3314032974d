// Package modes decides how containers are assigned GPUs and driver files on this system.
package modes

import (
	"context"
	"fmt"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/win32"
)

// singleDevicesBuild is the first Windows build whose Host Compute Service (HCS) is known to assign single
// devices to containers: Windows Server 2022. Microsoft documents only the assignment of device
// classes, and hcsshim checks no build. TensorWorks' plugins assign single devices and require this
// build: see README.md and deployments/default-daemonsets.yml in
// https://github.com/TensorWorks/DirectX-Device-Plugins.
const singleDevicesBuild = 20348

// suppliesFilesBuild is the first Windows build that is known to supply files of GPU drivers to containers, and
// to refuse a container with a GPU and a mount of such a file: Windows Server 2025. The list of these
// files is unknown.
//   - https://github.com/AppMana/cloud-provisioning/tree/0d7fe740cec13148f195e7c3706bc5a096078caa:
//     docs/validation/windows-cold-start-order-results.json has an NVIDIA L4 on this build
//     that fails with the driver's files and works without;
//     harness/e2e/observe/testdata/windows-gpu-success.json has it with them on 20348.
//   - https://github.com/microsoft/Windows-Containers/issues/594, 2026-06-02: CUDA works
//     with the device class alone.
const suppliesFilesBuild = 26100

// Modes are the modes of a policy, with auto replaced by the mode that the node supports. Each
// reason is one line.
type Modes struct {
	// Assignment is [policy.AssignByPath] for single devices, or [policy.AssignByClass]
	// for all GPUs of the node.
	Assignment        policy.Assignment
	AssignmentReason  string
	DriverFiles       policy.DriverFiles
	DriverFilesReason string
}

// Resolve returns the modes of p for containers of this operating system. build is the build number
// of Windows, 0 in a test of a Windows node on Linux.
func Resolve(p policy.Policy, containerOS string, build uint32) (m Modes) {
	m.Assignment, m.AssignmentReason = resolveAssignment(p.Assignment, containerOS, build)
	m.DriverFiles, m.DriverFilesReason = resolveDriverFiles(p.DriverFiles, containerOS, build)
	return m
}

func resolveDriverFiles(mode policy.DriverFiles, containerOS string, build uint32) (policy.DriverFiles, string) {
	switch {
	case containerOS != "windows":
		return policy.FilesMount, "Linux containers always get the driver's files"
	case mode != policy.FilesAuto:
		return mode, fmt.Sprintf("driverFiles is %s", mode)
	case build == 0:
		return policy.FilesMount, notWindows
	case build < suppliesFilesBuild:
		return policy.FilesMount, fmt.Sprintf("Windows build %d does not supply driver files, as builds since %d (Windows Server 2025) do", build, suppliesFilesBuild)
	}
	return policy.FilesNone, fmt.Sprintf("Windows build %d supplies driver files itself, as all builds since %d do, and refuses mounts of them", build, suppliesFilesBuild)
}

const notWindows = "the default, as the system is not Windows"

func resolveAssignment(mode policy.Assignment, containerOS string, build uint32) (policy.Assignment, string) {
	switch {
	case containerOS != "windows":
		return policy.AssignByPath, "Linux containers get single devices, by their device nodes"
	case mode == policy.AssignByPath:
		return mode, fmt.Sprintf("assignmentMode is %s", mode)
	case mode == policy.AssignByClass:
		return mode, fmt.Sprintf("assignmentMode is %s: containers get all GPUs of the node", mode)
	case build == 0:
		return policy.AssignByPath, notWindows
	case build < singleDevicesBuild:
		return policy.AssignByClass, fmt.Sprintf("Windows build %d cannot assign single devices, which requires %d (Windows Server 2022): containers get all GPUs of the node",
			build, singleDevicesBuild)
	}
	return policy.AssignByPath, fmt.Sprintf("Windows build %d assigns single devices, as all builds since %d do", build, singleDevicesBuild)
}

// ResolvePolicy returns the source and the policy for containers of this operating system, from the
// configured ones. The policy has the modes that this machine supports. If it assigns GPUs to Windows
// containers by location path, a device of the source without one is unhealthy.
func ResolvePolicy(source discovery.Source, p policy.Policy, containerOS string) (discovery.Source, policy.Resolved) {
	m := Resolve(p, containerOS, win32.WindowsBuild())
	p.Assignment, p.DriverFiles = m.Assignment, m.DriverFiles
	if containerOS != "windows" || p.Assignment == policy.AssignByClass {
		return source, policy.Resolved{Policy: p}
	}
	return unhealthyWithoutPath{source}, policy.Resolved{Policy: p}
}

// unhealthyWithoutPath is the source of [ResolvePolicy] with assignment by location path.
type unhealthyWithoutPath struct{ discovery.Source }

// Devices makes healthy devices without a location path unhealthy.
func (s unhealthyWithoutPath) Devices(ctx context.Context, instanceIDs ...string) ([]discovery.Device, error) {
	devices, err := s.Source.Devices(ctx, instanceIDs...)
	for i, d := range devices {
		if d.LocationPath == "" && len(d.DeviceNodes) == 0 && d.Health.OK() && !d.Software {
			devices[i].Health.Reason = "it has no location path, which is needed to assign it to a container: use a GPU that has one, such as a GPU on a PCI bus"
		}
	}
	return devices, err
}
