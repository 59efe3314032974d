package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/internal/capabilities"
	"directx-nri/internal/cli"
)

// exitUnknown is the exit status if something could not be found out.
const exitUnknown = 2

func newCapabilitiesCommand() *cobra.Command {
	n := newNodeFacts(runtime.GOOS, outputTable, outputJSON, outputYAML)
	command := &cobra.Command{
		Use:   "capabilities",
		Short: "Show what this node supports",
		Long: `Shows how containers are assigned GPUs, the versions of containerd and the shim,
whether NRI is enabled, which runtime handlers use the shim, and the schemas of HCS.`,
		Example: `  dxctl capabilities -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := n.printCapabilities(c.Context(), c.OutOrStdout())
			return err
		},
	}
	n.addFlags(command.Flags())
	return command
}

func newStatusCommand(goos string) *cobra.Command {
	n := newNodeFacts(goos, outputTable, outputJSON, outputYAML)
	command := &cobra.Command{
		Use:   "status",
		Short: "Show whether runtime handlers use the shim, and check them",
		Long: `Prints what 'dxctl capabilities' prints.

Exit status: 0 if the handlers that use the shim work, 1 if not or if there is none,
2 if that is unknown.`,
		Example: `  dxctl runtime status -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			f, err := n.printCapabilities(c.Context(), c.OutOrStdout())
			var problems []string
			for _, finding := range doctor.RuntimeFindings(f) {
				problems = append(problems, finding.Problem+": "+finding.Fix)
			}
			switch {
			case err != nil:
				return err
			case f.Containerd.FileErr != nil:
				return cli.WithStatus(exitUnknown, f.Containerd.FileErr)
			case f.Containerd.Err != nil:
				return cli.WithStatus(exitUnknown, fmt.Errorf("containerd's runtime handlers are unknown: %w; is --cri-socket %s correct?", f.Containerd.Err, n.criSocket))
			case len(problems) > 0:
				return errors.New(strings.Join(problems, "; "))
			}
			return nil
		},
	}
	n.addFlags(command.Flags())
	return command
}

// printCapabilities prints the facts of the node and returns them.
func (n *nodeFacts) printCapabilities(ctx context.Context, stdout io.Writer) (f doctor.Facts, err error) {
	if err := n.check(); err != nil {
		return f, err
	}
	f = n.gatherRuntime(ctx)
	r := reportCapabilities(f)
	if n.output == outputTable {
		return f, r.print(stdout)
	}
	return f, printAs(stdout, n.output, r)
}

// capabilitiesReport is the output. The names of its fields are stable.
type capabilitiesReport struct {
	doctor.Facts
	// Assignment is the assignment mode in force: "location-path", "class-guid" or
	// "unknown". Reason is why.
	Assignment string `json:"assignment"`
	Reason     string `json:"reason"`
}

func reportCapabilities(f doctor.Facts) capabilitiesReport {
	assignment := capabilities.Resolve(f.Config.Policy.Assignment, f.OS, func() (capabilities.Capabilities, error) { return *f.Windows, nil })
	r := capabilitiesReport{Facts: f, Assignment: string(assignment.Mode()), Reason: assignment.Reason}
	if f.Windows != nil && errors.Is(f.Windows.SchemasErr, context.DeadlineExceeded) {
		r.Assignment, r.Reason = "unknown", f.Windows.SchemasErr.Error()
	}
	return r
}

func (r capabilitiesReport) print(w io.Writer) error {
	table := newTable(w)
	if windows := r.Windows; windows != nil {
		table.row("Windows", windows.Windows.String())
		table.row("HCS schemas", orError(strings.Trim(fmt.Sprint(windows.Schemas), "[]"), windows.SchemasErr))
	}
	if w := r.WSL; w != nil {
		table.row("WSL", fmt.Sprintf("kernel %s; /dev/dxg: %s; /usr/lib/wsl/lib: %s; systemd: %s", w.Kernel, yesNo(w.Driver), yesNo(w.Libraries), yesNo(w.Systemd)))
	}
	table.row("Node policy", orError("valid", r.Config.Err))
	table.row("Assignment", fmt.Sprintf("%s (assignmentMode: %s): %s", r.Assignment, r.Config.Policy.Assignment, r.Reason))
	table.row("Injection", string(r.Config.Policy.Injection))
	for _, s := range r.Shims {
		table.row("Runtime shim", s.Path+": "+orError(s.Version, s.Err))
	}
	c := r.Containerd
	table.row("containerd", orError(c.Version, c.Err))
	table.row("Configuration", orError(c.ConfigPath, c.FileErr))
	table.row("NRI", yesNo(c.NRI))
	if len(c.Handlers) > 0 {
		fmt.Fprintln(table.Writer)
		table.row("HANDLER", "SHIM", "ANNOTATIONS", "LOADED", "RUNTIME PATH", "GPUS")
	}
	for _, h := range c.Handlers {
		table.row(h.Name, yesNo(h.Routed), yesNo(h.Annotations), yesNo(h.Loaded), h.RuntimePath, cmp.Or(h.NotEligible, "yes"))
	}
	return table.Flush()
}

// orError returns text, or the error's if there is one.
func orError(text string, err error) string {
	if err != nil {
		return err.Error()
	}
	return text
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}
