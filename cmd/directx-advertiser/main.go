// Command directx-advertiser is the Kubernetes device plugin that offers the node's
// GPUs to the kubelet and records what the kubelet allocates.
package main

import (
	"os"

	"github.com/directx-nri/directx-nri/internal/cli"
)

// version is set by the linker.
var version string

func main() { os.Exit(cli.Main(newCommand())) }
