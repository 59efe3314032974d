// Command kubectl-directx is the plugin 'kubectl directx', which shows the GPUs of a
// cluster's nodes.
package main

import (
	"os"

	"github.com/directx-nri/directx-nri/internal/cli"
)

// version is set by the linker.
var version string

func main() { os.Exit(cli.Main(newCommand())) }
