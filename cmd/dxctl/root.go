package main

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/internal/cli"
)

func newCommand() *cobra.Command {
	v := cli.Version(version)
	containers := []*cobra.Command{newFlagsCommand(), newSpecCommand()}
	if runtime.GOOS != "windows" { // Runtimes read CDI specifications on Linux only.
		containers = append(containers, newCDICommand())
	}
	command := &cobra.Command{
		Use:   "dxctl",
		Short: "Inspect and set up a node for containers with GPUs",
		Long: `dxctl shows the GPUs of a node and their containers, finds problems, and installs the
runtime shim.

Exit status of all commands: 0 on success, 1 on failure or if a problem was found, 2 if
dxctl was called incorrectly, 3 if a result is unknown.`,
		Example: `  dxctl status                       # show the GPUs, their containers and problems
  dxctl devices                      # list the GPUs
  dxctl doctor                       # find problems
  dxctl allocations                  # list the containers with GPUs
  dxctl runtime status               # show whether containerd runs the runtime shim`,
		Version: v,
	}
	for _, group := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"inspect", "Inspect the node:", []*cobra.Command{
			newStatusCommand(v), newDevicesCommand(), newAllocationsCommand(), newDoctorCommand(v), newVerifyCommand(v),
			newProbeCommand(),
		}},
		{"containers", "Prepare containers:", containers},
		{"setup", "Set up the node:", []*cobra.Command{newRuntimeCommand(), newConfigCommand()}},
		{"shell", "Other commands:", nil},
	} {
		command.AddGroup(&cobra.Group{ID: group.id, Title: group.title})
		for _, subcommand := range group.commands {
			subcommand.GroupID = group.id
			command.AddCommand(subcommand)
		}
	}
	command.SetHelpCommandGroupID("shell")
	command.SetCompletionCommandGroupID("shell")
	return command
}
