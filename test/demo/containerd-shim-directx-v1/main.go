// Command containerd-shim-directx-v1 is the runtime shim for the demo's Windows node, which is not
// this machine: its files are assumed to exist.
package main

import (
	"os"

	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/shim"
)

func main() { os.Exit(shim.Main("demo", hostfiles.Assumed{})) }
