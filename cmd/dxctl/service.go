package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"directx-nri/internal/cli"
	"directx-nri/internal/service"
)

func newServiceCommand(nodeOS string) *cobra.Command {
	command := &cobra.Command{
		Use:   "service",
		Short: "Run the daemons as services of a node without the chart",
		Long: `Runs directx-advertiser, and on Linux also directx-nri, as services that start with
the node and are started again when they end: native Windows services, or units of
systemd. On Windows the daemon logs to the Application event log.`,
	}
	command.AddCommand(newServiceInstallCommand(nodeOS), newServiceUninstallCommand(nodeOS), newServiceStatusCommand(nodeOS))
	return command
}

// daemons returns the node's daemons.
func daemons(nodeOS, unitDir string) []service.Daemon {
	advertiser := service.Daemon{Name: "directx-advertiser", Description: "Offers the node's GPUs to the kubelet", UnitDir: unitDir}
	if nodeOS == "windows" {
		return []service.Daemon{advertiser}
	}
	return []service.Daemon{{Name: "directx-nri", Description: "Adds allocated GPUs to containers", UnitDir: unitDir}, advertiser}
}

// addUnitDir adds the flag for systemd's directory, which Windows does not have.
func addUnitDir(command *cobra.Command, nodeOS string, unitDir *string) {
	if nodeOS != "windows" {
		command.Flags().StringVar(unitDir, "unit-dir", "/etc/systemd/system", "`DIRECTORY` of systemd's unit files")
	}
}

func newServiceInstallCommand(nodeOS string) *cobra.Command {
	var dir, unitDir string
	command := &cobra.Command{
		Use:   "install [-- FLAGS]",
		Short: "Install and start the services, directx-advertiser with FLAGS",
		Long: `Installs the services, or replaces them, and starts them. The programs must be where
only administrators can change them. Where systemctl does not exist, the units are written
only.`,
		Example: `  dxctl service install
  dxctl service install -- --inventory /etc/directx-nri/gpus.yaml --replicas 4`,
		Args: func(command *cobra.Command, args []string) error {
			if at := command.ArgsLenAtDash(); len(args) > 0 && at != 0 {
				return fmt.Errorf("unexpected argument %q: flags of directx-advertiser follow --", args[0])
			}
			return nil
		},
	}
	command.Flags().StringVar(&dir, "directory", "", "`DIRECTORY` of the daemons' programs (default that of dxctl)")
	addUnitDir(command, nodeOS, &unitDir)
	command.RunE = func(command *cobra.Command, args []string) error {
		if dir == "" {
			program, err := os.Executable()
			if err != nil {
				return err
			}
			dir = filepath.Dir(program)
		}
		for _, d := range daemons(nodeOS, unitDir) {
			d.Program = filepath.Join(dir, d.Name)
			if nodeOS == "windows" {
				d.Program += ".exe"
			}
			if d.Name == "directx-advertiser" {
				d.Args = args
			}
			if err := d.Install(command.Context()); err != nil {
				return err
			}
			fmt.Fprintf(command.OutOrStdout(), "installed the service %s: %s\n", d.Name, d.Program)
		}
		return nil
	}
	return command
}

func newServiceUninstallCommand(nodeOS string) *cobra.Command {
	var unitDir string
	command := &cobra.Command{
		Use:     "uninstall",
		Short:   "Stop and remove the services",
		Long:    "Stops and removes the services. Running containers keep their GPUs.",
		Example: "  dxctl service uninstall",
	}
	addUnitDir(command, nodeOS, &unitDir)
	command.RunE = func(command *cobra.Command, _ []string) error {
		var failed []error
		for _, d := range daemons(nodeOS, unitDir) {
			failed = append(failed, d.Uninstall(command.Context()))
		}
		return errors.Join(failed...)
	}
	return command
}

func newServiceStatusCommand(nodeOS string) *cobra.Command {
	var unitDir string
	command := &cobra.Command{
		Use:     "status",
		Short:   "Show whether the services run",
		Long:    "Shows whether the services run. The exit status is 1 if one does not.",
		Example: "  dxctl service status",
	}
	addUnitDir(command, nodeOS, &unitDir)
	command.RunE = func(command *cobra.Command, _ []string) error {
		stopped := ""
		for _, d := range daemons(nodeOS, unitDir) {
			state, err := d.Status(command.Context())
			if err != nil {
				return err
			}
			fmt.Fprintf(command.OutOrStdout(), "%s\t%s\n", d.Name, state)
			if state != "running" {
				stopped = d.Name
			}
		}
		if stopped != "" {
			return cli.WithStatus(1, fmt.Errorf("%s does not run", stopped))
		}
		return nil
	}
	return command
}
