package doctor

import (
	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/internal/cli"
)

// NewCapabilitiesCommand returns 'dxctl capabilities'. version is that of dxctl.
func NewCapabilitiesCommand(version string) *cobra.Command {
	g := gatherer{version: version}
	command := &cobra.Command{
		Use:   "capabilities",
		Short: "Show what this node supports",
		Long: `Shows how containers are assigned GPUs, the versions of containerd and the shim,
whether NRI is enabled, which runtime handlers use the shim, and the schema versions
that HCS supports.`,
		Example: `  dxctl capabilities`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := g.CheckFlags(); err != nil {
				return err
			}
			state := g.gatherRuntime(c.Context())
			if state.Config.Err != nil { // The modes in force depend on the policy.
				return state.Config.Err
			}
			return cli.PrintDocument(c.OutOrStdout(), g.output, state)
		},
	}
	g.addFlags(command, cli.YAML, cli.JSON)
	return command
}
