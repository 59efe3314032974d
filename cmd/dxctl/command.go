package main

import (
	"runtime"

	"github.com/spf13/cobra"

	"directx-nri/internal/cli"
)

func newCommand() *cobra.Command {
	command := &cobra.Command{
		Use:     "dxctl",
		Short:   "Set a node up for GPUs in containers",
		Version: cli.Version(version),
	}
	command.AddCommand(newRuntimeCommand())
	return command
}

func newRuntimeCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "runtime",
		Short: "Set up containerd and the runtime shim",
	}
	command.AddCommand(newInstallCommand(), newUninstallCommand(runtime.GOOS))
	command.AddCommand(newConfigureCommand(runtime.GOOS), newUnconfigureCommand(runtime.GOOS), newStatusCommand(runtime.GOOS))
	return command
}
