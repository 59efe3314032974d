// Command containerd-shim-directx-v1 is the runtime shim that adds GPUs to
// containers where containerd calls no NRI plugin.
package main

import (
	"os"

	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/shim"
)

// version is set by the linker.
var version = "unknown"

func main() { os.Exit(shim.Main(version, hostfiles.Root(""))) }
