package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/internal/bounded"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// checkTimeout limits each check. A disk, a driver or a service of Windows can hang.
const checkTimeout = 5 * time.Second

// doctorOptions are the flags of 'dxctl doctor' and 'dxctl status', and what a test replaces.
type doctorOptions struct {
	stateDir, shimDir, runtimeDir, kubeletDir, criSocket, hostRoot, report string

	isStatus bool   // of 'dxctl status'
	version  string // dxctl's
	cdiFile  string // the CDI specification
	cdiUnit  string // the link that enables the unit that writes it, and removes it while no GPU works
	timeout  time.Duration
}

// newDoctorCommand returns 'dxctl doctor'. version is that of dxctl.
func newDoctorCommand(version string) *cobra.Command {
	var o doctorOptions
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Check this node",
		Long: `Checks the node and changes nothing. Prints a line for each check, which begins with

  ✔  passed
  ✘  failed, with the cause and the remedy
  !  not checked, a note about a GPU that works in part, or no GPU on a node of Kubernetes,
     which need not have one

Fails if a check has failed. Requires root or an administrator.`,
		Example: `  # for a bug report; read it before you send it
  dxctl doctor --report node1.txt`,
	}
	command.Flags().StringVar(&o.report, "report", "", "write a new `FILE` for a bug report, without secrets")
	return o.command(command, version)
}

// command makes c run the checks. version is that of dxctl.
func (o *doctorOptions) command(c *cobra.Command, version string) *cobra.Command {
	o.version, o.cdiFile, o.timeout = version, "/var/run/cdi/directx-nri.yaml", checkTimeout
	o.cdiUnit = "/etc/systemd/system/multi-user.target.wants/directx-cdi.service"
	c.RunE = func(c *cobra.Command, _ []string) error {
		if !cli.IsAdministrator() { // Otherwise a lack of permission would look like a problem of the node.
			return fs.ErrPermission
		}
		return o.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr())
	}
	flags, defaults := c.Flags(), paths.Default()
	flags.StringVar(&o.criSocket, "cri-socket", defaults.CRI, "containerd's CRI `SOCKET` or named pipe")
	flags.StringVar(&o.kubeletDir, "kubelet-dir", defaults.DevicePlugins, "the kubelet's device plugin `DIRECTORY`")
	flags.StringVar(&o.stateDir, "state-dir", defaults.State, "state `DIRECTORY`")
	flags.StringVar(&o.runtimeDir, "runtime-dir", defaults.Runtime, "runtime `DIRECTORY` of directx-nri")
	addShimDirFlag(flags, &o.shimDir)
	addHostRootFlag(flags, &o.hostRoot)
	return c
}

func (o doctorOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	n := readNode(ctx, o)
	findings := runChecks(ctx, n, checks(), o.timeout)
	if err := ctx.Err(); err != nil {
		return cli.UnknownResult(fmt.Errorf("check the node: %w", err))
	}
	if o.isStatus {
		printStatus(ctx, stdout, n, findings)
	} else {
		printFindings(stdout, findings)
	}
	if o.report != "" {
		if err := writeReport(o.report, n, findings); err != nil {
			return err
		}
		fmt.Fprintf(stderr, "wrote %s; read it before you send it\n", o.report)
	}
	if slices.ContainsFunc(findings, func(f finding) bool { return f.mark == markFailed }) {
		return errors.New("this node has problems")
	}
	return nil
}

// check is a part of the node that works or not.
type check struct {
	name string
	// run returns a finding for each object, such as a GPU, and none if the node's set-up does not have the part.
	run func(context.Context, nodeState) []finding
	// needs are earlier checks without which this one would fail for their reasons.
	needs []string
}

type mark string

const (
	markPassed  mark = "✔"
	markFailed  mark = "✘"
	markUnknown mark = "!"
)

// finding is a result of a check. text is one line.
type finding struct {
	mark  mark
	check string
	text  string
}

func passed(format string, args ...any) []finding {
	return []finding{{mark: markPassed, text: errlog.OneLine(fmt.Sprintf(format, args...))}}
}

// failed returns the finding of an error. remedy is for an error that has none.
func failed(err error, remedy string) []finding {
	return []finding{{mark: markFailed, text: errlog.Text(errlog.WithRemedy(err, remedy))}}
}

// passedUnless returns the findings of the errors that are not nil, or if there is none, that the check has passed.
func passedUnless(errs []error, format string, args ...any) (findings []finding) {
	for _, err := range errs {
		if err != nil {
			findings = append(findings, failed(err, "")...)
		}
	}
	if findings == nil {
		return passed(format, args...)
	}
	return findings
}

// runChecks runs the checks in order, each for at most limit.
func runChecks(ctx context.Context, n nodeState, list []check, limit time.Duration) (findings []finding) {
	notPassed := map[string]bool{}
	for _, c := range list {
		results, err := withTimeout(ctx, limit, func(ctx context.Context) ([]finding, error) { return c.run(ctx, n), nil })
		if err != nil {
			results = failed(err, "")
		}
		cause := slices.IndexFunc(c.needs, func(name string) bool { return notPassed[name] })
		if cause >= 0 && len(results) > 0 { // It has run, because only that shows whether the node has the part.
			results = []finding{{mark: markUnknown, text: "not checked without " + c.needs[cause]}}
		}
		for _, f := range results {
			f.check = c.name
			notPassed[c.name] = notPassed[c.name] || f.mark != markPassed
			findings = append(findings, f)
		}
	}
	return findings
}

// withTimeout returns the result of query, or an error after limit: see [bounded.Call].
func withTimeout[T any](ctx context.Context, limit time.Duration, query func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %s", limit))
	defer cancel()
	return bounded.Call(ctx, query)
}

func printFindings(w io.Writer, findings []finding) {
	for _, f := range findings {
		fmt.Fprintf(w, "%s %-10s  %s\n", f.mark, f.check, f.text)
	}
}
