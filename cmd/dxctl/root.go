package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/cmd/dxctl/cdi"
	"github.com/directx-nri/directx-nri/cmd/dxctl/doctor"
	"github.com/directx-nri/directx-nri/cmd/dxctl/nodeconfig"
	"github.com/directx-nri/directx-nri/cmd/dxctl/noderuntime"
	"github.com/directx-nri/directx-nri/cmd/dxctl/show"
	"github.com/directx-nri/directx-nri/cmd/dxctl/verify"
	"github.com/directx-nri/directx-nri/internal/cli"
)

func newCommand() *cobra.Command {
	v := cli.Version(version)
	containers := []*cobra.Command{show.NewFlagsCommand(), show.NewSpecCommand()}
	if runtime.GOOS != "windows" { // Runtimes read CDI specifications on Linux only.
		containers = append(containers, cdi.NewCommand())
	}
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
		Version: v,
	}
	for _, group := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"inspect", "Inspect the node:", []*cobra.Command{
			show.NewDevicesCommand(), show.NewAllocationsCommand(), doctor.NewCapabilitiesCommand(v),
			doctor.NewCommand(v), verify.NewCommand(v),
		}},
		{"containers", "Prepare containers:", containers},
		{"setup", "Set up the node:", []*cobra.Command{newRuntimeCommand(), nodeconfig.NewCommand()}},
		{"shell", "Other commands:", []*cobra.Command{newVersionCommand(v)}},
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

// versionReport is the output of 'dxctl version'. The names of its fields are stable.
type versionReport struct {
	Version   string `json:"version"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
}

func newVersionCommand(v string) *cobra.Command {
	var output string
	command := &cobra.Command{
		Use:     "version",
		Short:   "Show the version of dxctl",
		Long:    "Shows the versions of dxctl and of Go, the operating system and the architecture.",
		Example: "  dxctl version -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			r := versionReport{Version: v, GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			if output != cli.Text {
				return cli.PrintDocument(c.OutOrStdout(), output, r)
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "dxctl version %s\nbuilt with %s for %s\n", r.Version, r.GoVersion, r.Platform)
			return err
		},
	}
	cli.AddOutputFlag(command, &output, cli.Text, cli.JSON, cli.YAML)
	return command
}

func newRuntimeCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "runtime",
		Short: "Set up the runtime shim and containerd",
	}
	command.AddCommand(noderuntime.NewSetupCommand(), noderuntime.NewInstallCommand(), noderuntime.NewUninstallCommand())
	command.AddCommand(noderuntime.NewConfigureCommand(), noderuntime.NewUnconfigureCommand())
	return command
}
