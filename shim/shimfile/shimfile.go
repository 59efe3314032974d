// Package shimfile has what other programs need of the runtime shim: its names, its self-test, and whether containerd
// bypasses it. All containers of a node can start with the shim, so a new file is tested before it is installed.
package shimfile

import "runtime"

// RuntimeName is the name of a runtime from which containerd derives [BaseName].
const RuntimeName = "io.containerd.directx.v1"

// BaseName is the shim's file name without the extension that Windows needs.
const BaseName = "containerd-shim-directx-v1"

// FileName returns the shim's file name on this system.
func FileName() string {
	if runtime.GOOS == "windows" {
		return BaseName + ".exe"
	}
	return BaseName
}
