package main

import (
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/internal/cli"
)

// exitUnknown is the exit status if something could not be found out.
const exitUnknown = 2

func newCapabilitiesCommand() *cobra.Command {
	return factsCommand(runtime.GOOS, &cobra.Command{
		Use:   "capabilities",
		Short: "Show what this node supports",
		Long: `Shows how containers are assigned GPUs, the versions of containerd and the shim,
whether NRI is enabled, which runtime handlers use the shim, and whether HCS answers.`,
		Example: `  dxctl capabilities`,
	}, func(*nodeFacts, doctor.Facts) error { return nil })
}

func newStatusCommand(goos string) *cobra.Command {
	return factsCommand(goos, &cobra.Command{
		Use:   "status",
		Short: "Show whether runtime handlers use the shim, and check them",
		Long: `Prints what 'dxctl capabilities' prints.

Exit status: 0 if the handlers that use the shim work, 1 if not or if there is none,
2 if that is unknown.`,
		Example: `  dxctl runtime status -o json`,
	}, func(n *nodeFacts, f doctor.Facts) error {
		var problems []string
		for _, finding := range doctor.RuntimeFindings(f) {
			problems = append(problems, finding.Problem+": "+finding.Fix)
		}
		switch {
		case f.Containerd.FileErr != nil:
			return cli.WithStatus(exitUnknown, f.Containerd.FileErr)
		case f.Containerd.Err != nil:
			return cli.WithStatus(exitUnknown, fmt.Errorf("containerd's runtime handlers are unknown: %w; is --cri-socket %s correct?", f.Containerd.Err, n.criSocket))
		case len(problems) > 0:
			return errors.New(strings.Join(problems, "; "))
		}
		return nil
	})
}

// factsCommand returns a command that prints the facts of the node and checks them.
func factsCommand(goos string, command *cobra.Command, check func(*nodeFacts, doctor.Facts) error) *cobra.Command {
	n := nodeFacts{target: target{os: goos}, outputs: []string{outputYAML, outputJSON}}
	command.RunE = func(c *cobra.Command, _ []string) error {
		if err := n.check(); err != nil {
			return err
		}
		f := n.gatherRuntime(c.Context())
		if err := printAs(c.OutOrStdout(), n.output, reportCapabilities(f)); err != nil {
			return err
		}
		return check(&n, f)
	}
	n.addFlags(command.Flags())
	return command
}

// capabilitiesReport is the output. The names of its fields are stable.
type capabilitiesReport struct {
	doctor.Facts
	// Assignment is the assignment mode in force, and Reason is why.
	Assignment string `json:"assignment"`
	Reason     string `json:"reason"`
}

func reportCapabilities(f doctor.Facts) capabilitiesReport {
	a := f.Assignment(f.Config.Policy.Assignment)
	return capabilitiesReport{f, string(a.Mode), a.Reason}
}
