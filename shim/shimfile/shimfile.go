// Package shimfile has the names of the runtime shim and runs its self-test. All containers of a node can start with
// the shim, so a new file is tested before it is installed.
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
