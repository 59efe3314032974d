// Package paths says where things are on a node unless a flag says otherwise.
package paths

import (
	"os"
	"path/filepath"
	"runtime"
)

// Defaults are the places that two of our programs must agree on, and those
// that others lay down.
type Defaults struct {
	// State is our folder that survives a reboot, as the kubelet's own
	// checkpoint of allocations does.
	State string
	// Runtime is our folder for sockets.
	Runtime string
	// DevicePlugins is the kubelet's folder for device plugins' sockets.
	DevicePlugins string
	// PodResources is the kubelet's PodResources socket, on Windows a named pipe
	// (pkg/kubelet/util/util_windows.go in Kubernetes, since v1.27).
	PodResources string
	// NRI is containerd's socket for NRI plugins, "" where it calls none.
	NRI string
	// CRI is containerd's CRI socket.
	CRI string
	// Config is our configuration file.
	Config string
	// ShimDir is the folder that the runtime shim is installed in: where
	// containerd looks for shims.
	ShimDir string
	// ContainerdConfig is containerd's configuration file.
	ContainerdConfig string
	// ContainerdState is containerd's folder of what runs.
	ContainerdState string
}

// OfThisSystem returns the defaults of the operating system we run on.
func OfThisSystem() Defaults {
	if runtime.GOOS != "windows" {
		return Defaults{
			State:         "/var/lib/directx-nri",
			Runtime:       "/run/directx-nri",
			DevicePlugins: "/var/lib/kubelet/device-plugins",
			PodResources:  "/var/lib/kubelet/pod-resources/kubelet.sock",
			NRI:           "/var/run/nri/nri.sock",
			CRI:           "/run/containerd/containerd.sock",

			Config:           "/etc/directx-nri/config.yaml",
			ShimDir:          "/usr/local/bin",
			ContainerdConfig: "/etc/containerd/config.toml",
			ContainerdState:  "/run/containerd",
		}
	}
	data := environment("ProgramData", `C:\ProgramData`)
	containerd := filepath.Join(environment("ProgramFiles", `C:\Program Files`), "containerd")
	return Defaults{
		State:         filepath.Join(data, "directx-nri"),
		Runtime:       filepath.Join(data, "directx-nri", "run"),
		DevicePlugins: `C:\var\lib\kubelet\device-plugins`,
		PodResources:  `\\.\pipe\kubelet-pod-resources`,
		CRI:           `\\.\pipe\containerd-containerd`,

		Config:           filepath.Join(data, "directx-nri", "config.yaml"),
		ShimDir:          containerd,
		ContainerdConfig: filepath.Join(containerd, "config.toml"),
		ContainerdState:  filepath.Join(data, "containerd", "state"),
	}
}

func environment(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// Allocations returns the folder of the allocation records in a state folder.
func Allocations(state string) string { return filepath.Join(state, "allocations") }
