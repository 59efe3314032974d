package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
)

type allocationsOptions struct {
	gpuSelection
	output cli.Output
}

// newAllocationsCommand returns 'dxctl allocations'.
func newAllocationsCommand() *cobra.Command {
	o := allocationsOptions{}
	command := &cobra.Command{
		Use:   "allocations",
		Short: "List which containers hold which GPUs",
		Long: `Lists the allocated replicas and the containers that hold them. A replica without a pod waits for its
container to be created.

Requires root or an administrator.`,
		Example: `  dxctl allocations -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("state-dir") {
				if _, err := os.Stat(o.StateDir); err != nil {
					return err
				}
			}
			return o.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	o.AddFlags(command)
	cli.AddOutputFlags(command, &o.output, cli.Table, cli.Wide, cli.JSON)
	return command
}

// allocationReport is an allocated replica. The names of its fields are stable.
type allocationReport struct {
	// Allocation is the record's ID. Replicas of one resource that were allocated to
	// one container have the same.
	Allocation string `json:"allocation"`
	Resource   string `json:"resource"`
	// Replica is the kubelet's device ID.
	Replica string `json:"replica"`
	// InstanceID is the GPU's. Description and LocationPath are empty if the node does not list it.
	InstanceID   string `json:"instanceID"`
	Description  string `json:"description,omitempty"`
	LocationPath string `json:"locationPath,omitempty"`
	// Namespace, Pod, PodUID and Container are the holder.
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	PodUID    string `json:"podUID,omitempty"`
	Container string `json:"container,omitempty"`
	// AllocatedAt is the time of the kubelet's allocation; Since that of the
	// container's creation, or null.
	AllocatedAt time.Time  `json:"allocatedAt"`
	Since       *time.Time `json:"since"`
}

func (o *allocationsOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	dir := paths.Allocations(o.StateDir)
	entries, problems, err := allocation.OpenStore(dir).List(ctx)
	if err != nil {
		return err
	}
	var devices []discovery.Device
	if len(entries) > 0 {
		if devices, _, err = o.Devices(ctx, stderr, runtime.GOOS); err != nil {
			fmt.Fprintf(stderr, "The GPUs are shown without their names: %s\n", errlog.Text(err))
		}
	} else if len(problems) == 0 {
		fmt.Fprintf(stderr, "There are no allocation records in %s.\n", dir)
	}
	if err := allocationList(time.Now()).Print(stdout, o.output, newAllocationReports(entries, devices)); err != nil {
		return err
	}
	for _, p := range problems {
		fmt.Fprintf(stderr, "problem: %s\n", errlog.Text(p))
	}
	if len(problems) > 0 {
		return fmt.Errorf("%d allocation record(s) could not be read; 'dxctl doctor' has the remedy", len(problems))
	}
	return nil
}

// newAllocationReports returns a report for each replica of entries, ordered by GPU and age.
func newAllocationReports(entries []allocation.Entry, devices []discovery.Device) []allocationReport {
	reports := []allocationReport{}
	for _, e := range entries {
		r := allocationReport{Allocation: string(e.ID), Resource: e.Resource, AllocatedAt: e.CreatedAt}
		if h := e.Holder; h != nil {
			r.Namespace, r.Pod, r.PodUID, r.Container = h.PodNamespace, h.PodName, h.PodUID, h.Container
			r.Since = &e.BoundAt
		}
		for _, replica := range e.Replicas {
			r.Replica, r.InstanceID = replica.ID, replica.InstanceID
			d, _ := discovery.Find(devices, replica.InstanceID)
			r.Description, r.LocationPath = d.Description, d.LocationPath
			reports = append(reports, r)
		}
	}
	slices.SortStableFunc(reports, func(a, b allocationReport) int { return strings.Compare(a.InstanceID, b.InstanceID) })
	return reports
}

func allocationList(now time.Time) cli.List[allocationReport] {
	return cli.List[allocationReport]{
		Header: []string{"GPU", "DESCRIPTION", "REPLICA", "RESOURCE", "POD", "CONTAINER", "SINCE"},
		Wide:   []string{"POD UID", "INSTANCE ID", "ALLOCATION"},
		Cells: func(r allocationReport) []string {
			replica, pod, since := r.Replica, "", ""
			if _, number, ok := allocation.ParseReplicaID(replica); ok {
				replica = fmt.Sprint(number)
			}
			if r.Since != nil {
				pod, since = r.Namespace+"/"+r.Pod, duration.HumanDuration(now.Sub(*r.Since))
			}
			return []string{
				cmp.Or(r.LocationPath, r.InstanceID), r.Description, replica, path.Base(r.Resource), pod, r.Container, since,
				r.PodUID, r.InstanceID, r.Allocation,
			}
		},
	}
}
