// Command directx-nri is the NRI plugin that gives containers the GPUs that
// were allocated to them.
package main

import (
	"os"

	"directx-nri/internal/cli"
)

// version is set by the linker.
var version string

func main() { os.Exit(cli.Main(newCommand())) }
