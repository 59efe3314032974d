package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
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
		Example: `  dxctl capabilities -o json`,
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
	n := nodeFacts{target: target{os: goos}, outputs: []string{outputTable, outputJSON, outputYAML}}
	command.RunE = func(c *cobra.Command, _ []string) error {
		if err := n.check(); err != nil {
			return err
		}
		f := n.gatherRuntime(c.Context())
		if err := reportCapabilities(f).print(c.OutOrStdout(), n.output); err != nil {
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

func (r capabilitiesReport) print(w io.Writer, output string) error {
	if output != outputTable {
		return printAs(w, output, r)
	}
	table := newTable(w)
	if windows := r.Windows; windows != nil {
		table.row("Windows", windows.Windows.String())
		table.row("HCS", orError("answers", windows.HCSErr))
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
