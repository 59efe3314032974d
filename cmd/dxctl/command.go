package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/cmd/dxctl/show"
	"github.com/directx-nri/directx-nri/internal/cli"
)

func newCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "dxctl",
		Short: "Inspect and set up a node for containers with GPUs",
		Long: `dxctl shows the GPUs of a node and their containers, finds problems, and sets up
containerd.

Exit status of all commands: 0 on success, 1 on failure or if a problem was found, 2 if
dxctl was called incorrectly, 3 if a result is unknown.`,
		Example: `  dxctl devices                      # list the GPUs
  dxctl doctor                       # find problems
  dxctl allocations                  # list the containers with GPUs
  dxctl runtime configure --dry-run  # show how containerd would be set up`,
		Version: cli.Version(version) + "\n" + cli.Build(),
	}
	for _, group := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"inspect", "Inspect the node:", []*cobra.Command{show.NewDevicesCommand(), newAllocationsCommand(), newCapabilitiesCommand(), newDoctorCommand(), newVerifyCommand()}},
		{"containers", "Prepare containers:", []*cobra.Command{show.NewFlagsCommand(), show.NewSpecCommand()}},
		{"setup", "Set up the node:", []*cobra.Command{newRuntimeCommand(), newConfigCommand(), newServiceCommand(runtime.GOOS)}},
		{"shell", "Other commands:", []*cobra.Command{newVersionCommand(command.Version)}},
	} {
		command.AddGroup(&cobra.Group{ID: group.id, Title: group.title})
		for _, below := range group.commands {
			below.GroupID = group.id
			command.AddCommand(below)
		}
	}
	command.AddCommand(newManCommand())
	command.SetHelpCommandGroupID("shell")
	command.SetCompletionCommandGroupID("shell")
	return command
}

func newVersionCommand(text string) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show the version of dxctl",
		Long:    "Shows the versions of dxctl and of the Go that built it, the operating system and the architecture.",
		Example: "  dxctl version",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), "dxctl version "+text)
			return err
		},
	}
}

func newRuntimeCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "runtime",
		Short: "Set up the runtime shim and containerd",
	}
	command.AddCommand(newSetupCommand(), newInstallCommand(), newUninstallCommand(runtime.GOOS))
	command.AddCommand(newConfigureCommand(runtime.GOOS), newUnconfigureCommand(runtime.GOOS), newStatusCommand(runtime.GOOS))
	command.AddCommand(newFinishRestartCommand(runtime.GOOS))
	return command
}
