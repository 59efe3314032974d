// Package paths has the default paths of files, directories and sockets.
package paths

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// StateDirVariable is the environment variable that replaces the default state directory of all
// programs.
const StateDirVariable = "DIRECTX_NRI_STATE_DIR"

// Paths are the paths on a node.
type Paths struct {
	// State is the directory of the files that must survive a reboot, as the kubelet's checkpoint
	// of allocations does.
	State string
	// Runtime is the directory of the project's sockets.
	Runtime string
	// DevicePlugins is the kubelet's device plugin directory.
	DevicePlugins string
	// PodResources is the kubelet's PodResources socket, on Windows a named pipe
	// (pkg/kubelet/util/util_windows.go in Kubernetes, since v1.27).
	PodResources string
	// NRI is containerd's socket for NRI plugins, "" on Windows.
	NRI string
	// CRI is containerd's CRI socket.
	CRI string
	// Config is the configuration file.
	Config string
	// ShimDir is the directory of the runtime shim, in containerd's search path, "" on Windows: see
	// package shim/diversion.
	ShimDir string
}

// Default returns the default paths of this operating system.
func Default() Paths {
	if runtime.GOOS != "windows" {
		return Paths{
			State:         cmp.Or(os.Getenv(StateDirVariable), "/var/lib/directx-nri"),
			Runtime:       "/run/directx-nri",
			DevicePlugins: "/var/lib/kubelet/device-plugins",
			PodResources:  "/var/lib/kubelet/pod-resources/kubelet.sock",
			NRI:           "/var/run/nri/nri.sock",
			CRI:           CRI(""),
			Config:        "/etc/directx-nri/config.yaml",
			ShimDir:       "/usr/local/bin",
		}
	}
	data := cmp.Or(os.Getenv("ProgramData"), `C:\ProgramData`)
	return Paths{
		State:         cmp.Or(os.Getenv(StateDirVariable), filepath.Join(data, "directx-nri")),
		Runtime:       filepath.Join(data, "directx-nri", "run"),
		DevicePlugins: `C:\var\lib\kubelet\device-plugins`,
		PodResources:  `\\.\pipe\kubelet-pod-resources`,
		CRI:           CRI(""),
		Config:        filepath.Join(data, "directx-nri", "config.yaml"),
	}
}

// k3sSocket is the socket of the containerd that k3s runs. Another containerd can run beside it.
// https://docs.k3s.io/advanced#configuring-containerd
const k3sSocket = "/run/k3s/containerd/containerd.sock"

// CRI returns socket, or if it is "" containerd's CRI socket: where k3s runs, that of k3s. Daemons call it at
// each use, because they start before k3s creates its socket at boot.
func CRI(socket string) string { return criSocket(socket, k3sSocket) }

func criSocket(socket, k3s string) string {
	if socket != "" {
		return socket
	}
	if runtime.GOOS == "windows" {
		return `\\.\pipe\containerd-containerd`
	}
	if _, err := os.Stat(k3s); err == nil {
		return k3s
	}
	return "/run/containerd/containerd.sock"
}

// Runhcs is the file name of the real shim on Windows.
const Runhcs = "containerd-shim-runhcs-v1.exe"

// RealShimDir is the name of the directory, beside our shim in the place of [Runhcs], that has the real one.
const RealShimDir = "directx-nri"

// RealShim returns the path of the real shim, which our shim has replaced in a directory of Windows. It keeps
// its name, by which HCS and other programs recognize it.
func RealShim(dir string) string { return filepath.Join(dir, RealShimDir, Runhcs) }

// SocketName returns the name of a resource's socket in the kubelet's device plugin
// directory. It is short because the whole path is limited to 107 bytes.
func SocketName(resource string) string {
	name, isDefaultDomain := strings.CutPrefix(resource, "directx.microsoft.com/")
	if !isDefaultDomain || len(name) > 10 {
		digest := sha256.Sum256([]byte(resource))
		name = hex.EncodeToString(digest[:5])
	}
	return "directx-" + name + ".sock"
}
