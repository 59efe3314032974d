// Command directx-nri is the NRI plugin that adds allocated GPUs to containers.
package main

import (
	"os"

	"github.com/directx-nri/directx-nri/internal/cli"
)

// version is set by the linker.
var version string

func main() { os.Exit(cli.Main(newCommand())) }
