package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// newStatusCommand returns 'dxctl status'. version is that of dxctl.
func newStatusCommand(version string) *cobra.Command {
	o := newDoctorOptions(version)
	command := &cobra.Command{
		Use:   "status",
		Short: "Show the GPUs, who holds them, and what is not ready",
		Long: `Shows on one screen what 'dxctl devices' and 'dxctl allocations' list, and the checks of
'dxctl doctor' that have not passed. Changes nothing.

Fails if a check has failed. Requires root or an administrator.`,
		Example: `  dxctl status`,
		RunE: func(c *cobra.Command, _ []string) error {
			if !cli.IsAdministrator() {
				return fs.ErrPermission
			}
			return o.status(c.Context(), c.OutOrStdout(), time.Now())
		},
	}
	o.addFlags(command.Flags())
	return command
}

// status prints the GPUs, the allocations, and the findings that have not passed. Each list that cannot be read is
// among the findings.
func (o doctorOptions) status(ctx context.Context, stdout io.Writer, now time.Time) error {
	n, findings, err := o.check(ctx)
	if err != nil {
		return err
	}
	if err := deviceList().Print(stdout, cli.Table, newGPUReports(n.gpus)); err != nil {
		return err
	}
	if len(n.gpus) > 0 {
		fmt.Fprintln(stdout)
	}
	entries, _, _ := allocation.OpenStore(paths.Allocations(o.stateDir)).List(ctx)
	if len(entries) > 0 {
		var devices []discovery.Device
		for _, d := range n.gpus {
			devices = append(devices, d.Device)
		}
		if err := allocationList(now).Print(stdout, cli.Table, newAllocationReports(entries, devices)); err != nil {
			return err
		}
		fmt.Fprintln(stdout)
	} else if n.setup() == setupKubernetes {
		fmt.Fprint(stdout, "no GPU is allocated\n\n")
	}
	notPassed := slices.DeleteFunc(slices.Clone(findings), func(f finding) bool { return f.mark == markPassed })
	printFindings(stdout, notPassed)
	fmt.Fprintf(stdout, "%s %d checks passed\n", markPassed, len(findings)-len(notPassed))
	return problemsOf(findings)
}
