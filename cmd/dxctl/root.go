package main

import (
	"fmt"
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
		Example: `  dxctl devices                      # list the GPUs
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
			newDevicesCommand(), newAllocationsCommand(), newDoctorCommand(v), newVerifyCommand(v),
		}},
		{"containers", "Prepare containers:", containers},
		{"setup", "Set up the node:", []*cobra.Command{newRuntimeCommand(), newConfigCommand()}},
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
