// Command dxctl sets a node up for GPUs in containers, and tells how it is set
// up.
package main

import (
	"os"

	"directx-nri/internal/cli"
)

// version is set by the linker.
var version string

func main() { os.Exit(cli.Main(newCommand())) }
