// Command directx-labeler gives its Kubernetes node the labels of the node's GPUs.
package main

import (
	"os"

	"github.com/directx-nri/directx-nri/internal/cli"
)

// version is set by the linker.
var version string

func main() { os.Exit(cli.Main(newCommand())) }
