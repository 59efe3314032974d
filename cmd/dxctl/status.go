package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// newStatusCommand returns 'dxctl status'. version is that of dxctl.
func newStatusCommand(version string) *cobra.Command {
	o := doctorOptions{isStatus: true}
	return o.command(&cobra.Command{
		Use:   "status",
		Short: "Show the GPUs, who holds them, and what is not ready",
		Long: `Shows on one screen what 'dxctl devices' and 'dxctl allocations' list, and the checks of
'dxctl doctor' that have not passed. Changes nothing.

Fails if a check has failed. Requires root or an administrator.`,
		Example: `  dxctl status`,
	}, version)
}

// printStatus prints the GPUs, the allocations, and the findings that have not passed. A list that cannot be read is
// among the findings. Kubelet injection keeps no records.
func printStatus(ctx context.Context, stdout io.Writer, n nodeState, findings []finding) {
	table := cli.Output{Format: cli.Table}
	if len(n.gpus) > 0 {
		_ = deviceList().Print(stdout, table, newGPUReports(n.gpus))
		fmt.Fprintln(stdout)
	}
	var devices []discovery.Device
	for _, d := range n.gpus {
		devices = append(devices, d.Device)
	}
	entries, problems, err := allocation.OpenStore(paths.Allocations(n.stateDir)).List(ctx)
	hasAllRecords := err == nil && len(problems) == 0 && n.setup() == setupKubernetes && n.injection() != policy.InjectByKubelet
	if len(entries) > 0 {
		_ = allocationList(time.Now()).Print(stdout, table, newAllocationReports(entries, devices))
		fmt.Fprintln(stdout)
	} else if hasAllRecords {
		fmt.Fprint(stdout, "no GPU is allocated\n\n")
	}
	notPassed := slices.DeleteFunc(slices.Clone(findings), func(f finding) bool { return f.mark == markPassed })
	printFindings(stdout, notPassed)
	fmt.Fprintf(stdout, "%s %d checks passed\n", markPassed, len(findings)-len(notPassed))
}
