// Command containerd-shim-directx-v1 is the runtime shim that adds GPUs to
// containers where containerd calls no NRI plugin.
package main

// The Windows version resource, which names the program: it runs as containerd-shim-runhcs-v1.exe. The linker takes
// the files of its platform. They have no version number, because they are not built with the program: --version prints it.
//
//go:generate go tool -modfile=../../tools/go.mod goversioninfo -o versioninfo_windows_amd64.syso versioninfo.json
//go:generate go tool -modfile=../../tools/go.mod goversioninfo -arm -o versioninfo_windows_arm64.syso versioninfo.json

import (
	"os"

	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/shim"
)

// version is set by the linker.
var version = "unknown"

func main() { os.Exit(shim.Main(version, hostfiles.Root(""))) }
