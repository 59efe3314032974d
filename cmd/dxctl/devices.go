package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/advertiser/resources"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/policy"
)

type devicesOptions struct {
	gpuSelection
	output cli.Output
}

// newDevicesCommand returns 'dxctl devices'.
func newDevicesCommand() *cobra.Command {
	o := devicesOptions{}
	command := &cobra.Command{
		Use:   "devices [INDEX | PATH | LUID | INSTANCE-ID]",
		Short: "List this node's GPUs",
		Long: `Lists the GPUs of this node. The index changes if a GPU is added or removed.

With a GPU's index, location path, LUID or instance ID, prints its details as YAML.`,
		Example: `  dxctl devices 0
  dxctl devices --inventory gpus.yaml -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(c.Context(), args, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := command.Flags()
	o.AddFlags(command)
	addHostRootFlag(flags, &o.HostRoot)
	cli.AddOutputFlags(command, &o.output, cli.Table, cli.Wide, cli.JSON, cli.YAML)
	return command
}

func (o *devicesOptions) run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	devices, p, err := o.Devices(ctx, stderr, runtime.GOOS)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		if len(devices) == 0 && o.output.Format != cli.JSON && o.output.Format != cli.YAML {
			fmt.Fprintln(stderr, "This node has no GPU.")
		}
		return deviceList().Print(stdout, o.output, o.reports(devices, p.Policy))
	}
	index := discovery.IndexOf(devices, args[0])
	if index < 0 {
		return fmt.Errorf("no GPU of this node is %q; 'dxctl devices -o wide' lists them", args[0])
	}
	if o.output.Format != cli.JSON {
		o.output.Format = cli.YAML
	}
	return cli.PrintDocument(stdout, o.output.Format, o.reports(devices, p.Policy)[index])
}

// reports returns the reports of devices, for this system unless they are those of an inventory of any
// node.
func (o *devicesOptions) reports(devices []discovery.Device, p policy.Policy) []gpuReport {
	nodeOS := runtime.GOOS
	if o.Inventory != "" {
		nodeOS = ""
	}
	return newGPUReports(resources.Match(devices, p, nodeOS))
}

func deviceList() cli.List[gpuReport] {
	return cli.List[gpuReport]{
		Header: []string{"INDEX", "DESCRIPTION", "VENDOR", "MEMORY", "DRIVER", "KIND", "LOCATION PATH", "HEALTH"},
		Wide:   []string{"RESOURCE", "REPLICAS", "LUID", "NUMA", "INSTANCE ID"},
		Cells: func(r gpuReport) []string {
			memory, numaNode, health := "", "", r.Health
			if r.DedicatedMemory > 0 {
				memory = fmt.Sprintf("%d MiB", r.DedicatedMemory>>20)
			}
			if r.NUMANode != nil {
				numaNode = strconv.Itoa(*r.NUMANode)
			}
			if health == (discovery.Health{}).String() && r.NotOffered != "" {
				health = "not offered: " + r.NotOffered
			}
			return []string{
				strconv.Itoa(r.Index), r.Description, r.VendorID.Name(), memory, r.DriverVersion, r.Kind, r.LocationPath,
				strings.Join(append([]string{health}, r.Notes...), "; "),
				r.Resource, strconv.Itoa(r.Replicas), r.LUID, numaNode, r.InstanceID,
			}
		},
	}
}

// gpuReport describes a GPU. Health replaces that of the device, and LUID its number.
type gpuReport struct {
	discovery.Device

	// Index is the device's place in the list, from 0.
	Index int `json:"index"`
	// Kind is display, compute or none.
	Kind string `json:"kind"`
	LUID string `json:"luid,omitempty"`
	// Health is "healthy" or the problem.
	Health string `json:"health"`
	// Resource is the extended resource that offers the device to Replicas containers. NotOffered is why
	// there is none.
	Resource   string `json:"resource,omitempty"`
	Replicas   int    `json:"replicas,omitempty"`
	NotOffered string `json:"notOffered,omitempty"`
}

func newGPUReports(devices []resources.Device) []gpuReport {
	reports := make([]gpuReport, len(devices))
	for i, d := range devices {
		r := gpuReport{
			Device: d.Device, Index: i, Kind: cmp.Or(string(d.Kind()), "none"), Health: d.Health.String(), NotOffered: d.Reason,
		}
		if d.Rule != nil {
			r.Resource, r.Replicas = d.Rule.Name, d.Rule.Replicas
		}
		if d.LUID != 0 {
			r.LUID = d.LUID.String()
		}
		reports[i] = r
	}
	return reports
}
