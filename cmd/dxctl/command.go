package main

import (
	"runtime"

	"github.com/spf13/cobra"

	"directx-nri/internal/cli"
)

func newCommand() *cobra.Command {
	command := &cobra.Command{
		Use:     "dxctl",
		Short:   "See a node's GPUs, and set it up for containers with them",
		Version: cli.Version(version),
	}
	command.AddCommand(newDevicesCommand(), newFlagsCommand(), newRunCommand(), newSpecCommand(), newSimulateCommand())
	command.AddCommand(newAllocationsCommand(), newCapabilitiesCommand(), newDoctorCommand(), newRuntimeCommand())
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
