// Package nodeservice has the commands that run directx-advertiser as a Windows service.
package nodeservice

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/internal/service"
)

// NewCommand returns 'dxctl service'.
func NewCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "service",
		Short: "Run directx-advertiser as a Windows service, without the chart",
		Long: `Runs directx-advertiser as a native Windows service. It starts with the node, is restarted
when it ends, and logs to the Application event log. On Linux, use the units of the packages.`,
	}
	command.AddCommand(newInstallCommand(), newUninstallCommand())
	return command
}

func newInstallCommand() *cobra.Command {
	var programDir string
	command := &cobra.Command{
		Use:   "install [-- FLAGS]",
		Short: "Install and start the service with FLAGS of directx-advertiser",
		Long: `Installs or replaces the service, and starts it. The program must be in a directory that
only administrators can write.`,
		Example: `  dxctl service install
  dxctl service install -- --inventory C:\gpus.yaml --replicas 4`,
		Args: func(c *cobra.Command, args []string) error {
			if at := c.ArgsLenAtDash(); len(args) > 0 && at != 0 {
				return fmt.Errorf("unexpected argument %q: flags of directx-advertiser follow --", args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if programDir == "" {
				self, err := os.Executable()
				if err != nil {
					return err
				}
				programDir = filepath.Dir(self)
			}
			d := service.Daemon{
				Name: service.Advertiser, Description: "Offers the node's GPUs to the kubelet",
				Program: filepath.Join(programDir, service.Advertiser+".exe"), Args: args,
			}
			if err := d.Install(c.Context()); err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "installed the service %s: %s\n", d.Name, d.Program)
			return nil
		},
	}
	command.Flags().StringVar(&programDir, "directory", "", "`DIRECTORY` of directx-advertiser.exe (default: that of dxctl)")
	return command
}

func newUninstallCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "uninstall",
		Short:   "Stop and remove the service",
		Long:    "Stops and removes the service. Running containers keep their GPUs.",
		Example: "  dxctl service uninstall",
		RunE: func(c *cobra.Command, _ []string) error {
			removed, err := service.Daemon{Name: service.Advertiser}.Uninstall(c.Context())
			if err != nil {
				return err
			}
			message := "removed the service %s\n"
			if !removed {
				message = "the service %s is not installed\n"
			}
			fmt.Fprintf(c.OutOrStdout(), message, service.Advertiser)
			return nil
		},
	}
}
