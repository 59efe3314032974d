package nodesetup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/cmd/dxctl/containerd"
	"github.com/directx-nri/directx-nri/deployments/systemd"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/service"
)

// serviceOptions are the flags of 'dxctl service' on a node with the operating system nodeOS.
type serviceOptions struct {
	nodeOS, unitDir string
	cdi             bool
	programDir      string // for install
	// These are for uninstall.
	node     containerd.Instance
	stateDir string
	force    bool
}

// NewServiceCommand returns the group of commands for a node with this operating system.
func NewServiceCommand(nodeOS string) *cobra.Command {
	o := serviceOptions{nodeOS: nodeOS}
	command := &cobra.Command{
		Use:   "service",
		Short: "Run the daemons as services of a node without the chart",
		Long: `Runs directx-advertiser, and on Linux also directx-nri, as services that start with
the node and are started again when they end: native Windows services, or units of
systemd. On Windows the daemon logs to the Application event log.

On Linux, with --cdi, runs in their place a service that keeps the CDI specification
current: see 'dxctl cdi generate'.`,
	}
	command.AddCommand(o.installCommand(), o.uninstallCommand())
	return command
}

// forEach makes command call do with each daemon.
func (o *serviceOptions) forEach(command *cobra.Command, do func(c *cobra.Command, d service.Daemon, args []string) error) {
	if o.nodeOS != "windows" {
		command.Flags().StringVar(&o.unitDir, "unit-dir", "/etc/systemd/system", "`DIRECTORY` of systemd's unit files")
		command.Flags().BoolVar(&o.cdi, "cdi", false, "the service of the CDI specification (Docker, Podman), not the daemons")
	}
	command.RunE = func(c *cobra.Command, args []string) error {
		var failed []error
		for _, name := range o.names() {
			unit, err := systemd.Units.ReadFile(name + ".service")
			if err != nil {
				return err
			}
			d := service.Daemon{Name: name, Description: "Offers the node's GPUs to the kubelet", Unit: string(unit), UnitDir: o.unitDir}
			failed = append(failed, do(c, d, args))
		}
		return errors.Join(failed...)
	}
}

func (o *serviceOptions) installCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "install [-- FLAGS]",
		Short: "Install and start the services, directx-advertiser with FLAGS",
		Long: `Installs or replaces the services, and starts them. The programs must be where only
administrators can change them. Without systemctl, only the units are written.`,
		Example: `  dxctl service install
  dxctl service install -- --inventory /etc/directx-nri/gpus.yaml --replicas 4`,
		Args: func(c *cobra.Command, args []string) error {
			if at := c.ArgsLenAtDash(); len(args) > 0 && at != 0 {
				return fmt.Errorf("unexpected argument %q: flags of directx-advertiser follow --", args[0])
			}
			return nil
		},
	}
	o.forEach(command, o.install)
	command.Flags().StringVar(&o.programDir, "directory", "", "`DIRECTORY` of the daemons' programs (default that of dxctl)")
	return command
}

func (o *serviceOptions) uninstallCommand() *cobra.Command {
	command := &cobra.Command{
		Use:     "uninstall",
		Short:   "Stop and remove the services",
		Long:    "Stops and removes the services. Running containers keep their GPUs.",
		Example: "  dxctl service uninstall",
	}
	o.forEach(command, uninstallDaemon)
	if o.nodeOS == "windows" {
		return command
	}
	flags, defaults := command.Flags(), paths.Default()
	flags.StringVar(&o.node.CRISocket, "cri-socket", defaults.CRI, "containerd's CRI `SOCKET` or named pipe")
	flags.StringVar(&o.stateDir, "state-dir", defaults.State, "state `DIRECTORY`")
	containerd.AddForceFlag(flags, &o.force)
	command.PreRunE = func(c *cobra.Command, _ []string) error {
		if o.cdi {
			return nil
		}
		return o.node.CheckHolders(c.Context(), o.stateDir, c.ErrOrStderr(), o.force)
	}
	return command
}

// names returns the names of the node's services.
func (o *serviceOptions) names() []string {
	switch {
	case o.nodeOS == "windows":
		return []string{"directx-advertiser"}
	case o.cdi:
		return []string{"directx-cdi"}
	}
	return []string{"directx-nri", "directx-advertiser"}
}

// uninstallDaemon removes the service of d.
func uninstallDaemon(c *cobra.Command, d service.Daemon, _ []string) error {
	removed, err := d.Uninstall(c.Context())
	if err != nil {
		return err
	}
	message := "removed the service %s\n"
	if !removed {
		message = "the service %s is not installed\n"
	}
	fmt.Fprintf(c.OutOrStdout(), message, d.Name)
	return nil
}

// install installs d, whose program is in programDir, or beside dxctl.
func (o *serviceOptions) install(c *cobra.Command, d service.Daemon, args []string) error {
	dir := o.programDir
	if dir == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		dir = filepath.Dir(self)
	}
	program := d.Name
	switch d.Name {
	case "directx-advertiser":
		d.Args = args
	case "directx-cdi":
		program = "dxctl"
	}
	d.Program = filepath.Join(dir, program)
	if o.nodeOS == "windows" {
		d.Program += ".exe"
	}
	if err := d.Install(c.Context()); err != nil {
		return err
	}
	fmt.Fprintf(c.OutOrStdout(), "installed the service %s: %s\n", d.Name, d.Program)
	return nil
}
