// Command directx-advertiser is the Kubernetes device plugin that offers the node's
// GPUs to the kubelet and records what the kubelet allocates.
package main

import (
	"context"
	"io"
	"os"

	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/service"
)

// version is set by the linker.
var version string

func main() {
	status, started := service.Run(service.Advertiser, func(ctx context.Context, log io.Writer) int {
		return cli.Run(ctx, newCommand(), log)
	})
	if !started {
		status = cli.Main(newCommand())
	}
	os.Exit(status)
}
