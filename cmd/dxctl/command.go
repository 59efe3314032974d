package main

import (
	"runtime"

	"github.com/spf13/cobra"

	"directx-nri/internal/cli"
)

func newCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "dxctl",
		Short: "See a node's GPUs, run containers with them, and set the node up",
		Long: `dxctl is for people at a node: it shows the GPUs that containers can be given,
starts containers with them by hand, says why something does not work, and sets
containerd up.

Exit status: 0 when all is well, 1 on failure, 2 when dxctl was called wrongly,
unless a command says otherwise.`,
		Example: `  dxctl devices                                # which GPUs are here?
  dxctl doctor                                 # what keeps containers from them?
  dxctl flags --for ctr --index 0              # flags for 'ctr run'
  dxctl runtime configure --dry-run            # what would be changed for containerd?`,
		Version: cli.Version(version) + "\n" + cli.Build(),
	}
	for _, group := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"see", "See what is there:", []*cobra.Command{newDevicesCommand(), newAllocationsCommand(), newCapabilitiesCommand(), newDoctorCommand()}},
		{"run", "Run containers, and see what they would get:", []*cobra.Command{newFlagsCommand(), newSpecCommand()}},
		{"set", "Set the node up:", []*cobra.Command{newRuntimeCommand(), newConfigCommand()}},
		{"shell", "Set your shell up:", []*cobra.Command{newCompletionCommand()}},
	} {
		command.AddGroup(&cobra.Group{ID: group.id, Title: group.title})
		for _, below := range group.commands {
			below.GroupID = group.id
			command.AddCommand(below)
		}
	}
	command.AddCommand(newManCommand())
	command.SetHelpCommandGroupID("shell")
	completeFlags(command)
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
