package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// newDoctorCommand returns 'dxctl doctor'. version is that of dxctl.
func newDoctorCommand(version string) *cobra.Command {
	defaults := paths.Default()
	g := gatherer{version: version}
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Find problems of this node, and their remedies",
		Long: `Checks the node from end to end and changes nothing. Prints the consequence and remedy
of each problem. Requires root or an administrator.`,
		Example: `  # for a bug report; read it before you send it
  dxctl doctor --report node1.json`,
		RunE: func(c *cobra.Command, _ []string) error { return g.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	flags := command.Flags()
	g.addFlags(command, cli.Text, cli.JSON, cli.YAML)
	flags.StringVar(&g.reportFile, "report", "", "write a new `FILE` for a bug report, without secrets")
	flags.StringVar(&g.kubeletDir, "kubelet-dir", defaults.DevicePlugins, "the kubelet's device plugin `DIRECTORY`")
	flags.StringVar(&g.podResources, "pod-resources-socket", defaults.PodResources, "the kubelet's PodResources `SOCKET` or named pipe")
	addHostRootFlag(flags, &g.hostRoot)
	return command
}

// newCapabilitiesCommand returns 'dxctl capabilities'. version is that of dxctl.
func newCapabilitiesCommand(version string) *cobra.Command {
	g := gatherer{version: version}
	command := &cobra.Command{
		Use:   "capabilities",
		Short: "Show what this node supports",
		Long: `Shows how containers are assigned GPUs, the versions of containerd and the shim,
whether NRI is enabled, which runtime handlers can have GPUs, and the schema versions
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

func (g *gatherer) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := g.CheckFlags(); err != nil {
		return err
	}
	if g.reportFile != "" && durable.Exists(g.reportFile) {
		return cli.UsageError("--report: %s exists", g.reportFile)
	}
	state := g.gather(ctx)
	if err := ctx.Err(); err != nil {
		return cli.UnknownResult(fmt.Errorf("check the node: %w", err))
	}
	report := examine(state)
	var err error
	if g.output == cli.Text {
		err = report.Print(stdout)
	} else {
		err = cli.PrintDocument(stdout, g.output, report)
	}
	if err == nil && g.reportFile != "" {
		err = g.writeReport(stderr, state, report)
	}
	switch {
	case err != nil:
		return err
	case report.Problems() > 0:
		return errors.New("this node has problems")
	case len(report.Findings) > 0:
		return cli.UnknownResult(errors.New("some checks could not be performed"))
	}
	return nil
}

// The values of [doctorReport.Role].
const (
	roleKubernetes = "kubernetes"
	roleStandalone = "standalone"
)

// doctorReport is the result of an examination. The names of its fields are stable.
type doctorReport struct {
	Version string `json:"version"`
	OS      string `json:"os"`
	// Role is [roleKubernetes] or [roleStandalone].
	Role string `json:"role"`
	// Injection is what adds GPUs to containers, "" if directx-nri is not set up.
	Injection policy.Injection `json:"injection"`
	Findings  []finding        `json:"findings"`
}

// Problems returns the number of findings that are problems.
func (r doctorReport) Problems() (n int) {
	for _, f := range r.Findings {
		if f.Severity == severityProblem {
			n++
		}
	}
	return n
}

// Print writes the report as text: a block for each finding, and a summary.
func (r doctorReport) Print(w io.Writer) error {
	var text strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&text, "%s %s", f.Severity, f.Check)
		if f.Object != "" {
			fmt.Fprintf(&text, ": %s", f.Object)
		}
		fmt.Fprintf(&text, "\n  what    %s\n  effect  %s\n  fix     %s\n\n", f.Problem, f.Effect, f.Fix)
	}
	result := "no problems"
	if len(r.Findings) > 0 {
		problems := r.Problems()
		result = fmt.Sprintf("%d problem(s), %d unknown", problems, len(r.Findings)-problems)
	}
	node := fmt.Sprintf("a %s node that is not set up", r.Role)
	if r.Injection != "" {
		node = fmt.Sprintf("a %s node with injection by %s", r.Role, r.Injection)
	}
	fmt.Fprintf(&text, "%s: %s\n", node, result)
	_, err := io.WriteString(w, text.String())
	return err
}
