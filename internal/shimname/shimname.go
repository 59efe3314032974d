// Package shimname knows what our runtime shim is called.
package shimname

import "strings"

// Name is the shim's binary, on Windows with ".exe" behind it. containerd finds
// it by this name for the runtime io.containerd.directx.v1.
const Name = "containerd-shim-directx-v1"

// File returns the binary's name on an operating system.
func File(os string) string {
	if os == "windows" {
		return Name + ".exe"
	}
	return Name
}

// Is tells whether a runtime_path of containerd names our shim, in whatever
// folder and for whatever system.
func Is(runtimePath string) bool {
	base := strings.ToLower(runtimePath[strings.LastIndexAny(runtimePath, `/\`)+1:])
	return strings.TrimSuffix(base, ".exe") == Name
}
