package doctor

import (
	"errors"
	"runtime"
	"slices"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/cmd/dxctl/containerd"
	"github.com/directx-nri/directx-nri/internal/cli"
)

// NewCapabilitiesCommand returns the command of a dxctl with this version.
func NewCapabilitiesCommand(version string) *cobra.Command {
	return stateCommand(runtime.GOOS, version, &cobra.Command{
		Use:   "capabilities",
		Short: "Show what this node supports",
		Long: `Shows how containers are assigned GPUs, the versions of containerd and the shim,
whether NRI is enabled, which runtime handlers use the shim, and the schema versions
that HCS supports.`,
		Example: `  dxctl capabilities`,
	}, func(nodeState) error { return nil })
}

// NewStatusCommand returns the command for a node with this operating system.
func NewStatusCommand(goos, version string) *cobra.Command {
	return stateCommand(goos, version, &cobra.Command{
		Use:   "status",
		Short: "Show whether runtime handlers use the shim",
		Long: `Prints what 'dxctl capabilities' prints.

Fails if no handler of the running containerd uses the shim, or if that is unknown;
'dxctl doctor' has the cause.`,
		Example: `  dxctl runtime status -o json`,
	}, func(f nodeState) error {
		serves := func(h handler) bool { return h.Routed && h.Loaded && h.NotEligible == "" }
		if f.NotServed == nil && slices.ContainsFunc(f.Containerd.Handlers, serves) {
			return nil
		}
		return errors.New("no runtime handler uses our shim; run 'dxctl doctor'")
	})
}

// stateCommand returns a command that prints the state of the node and checks them.
func stateCommand(goos, version string, command *cobra.Command, check func(nodeState) error) *cobra.Command {
	n := gatherer{Instance: containerd.Instance{OS: goos}, version: version}
	command.RunE = func(c *cobra.Command, _ []string) error {
		if err := n.check(); err != nil {
			return err
		}
		f := n.gatherRuntime(c.Context())
		if f.Config.Err != nil { // The modes in force depend on the policy.
			return f.Config.Err
		}
		if err := cli.PrintDocument(c.OutOrStdout(), n.output, f); err != nil {
			return err
		}
		return check(f)
	}
	n.addFlags(command, cli.YAML, cli.JSON)
	return command
}
