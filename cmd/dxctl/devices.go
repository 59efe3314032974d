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
	gpuFlags
	output string
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
	o.AddFlags(flags)
	addHostRootFlag(flags, &o.HostRoot)
	cli.AddOutputFlag(command, &o.output, cli.Table, cli.Wide, cli.JSON, cli.YAML)
	return command
}

func (o *devicesOptions) run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	devices, p, err := o.Devices(ctx, stderr, runtime.GOOS)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		if len(devices) == 0 && o.output != cli.JSON && o.output != cli.YAML {
			fmt.Fprintln(stderr, "This node has no GPU.")
		}
		return deviceList().Print(stdout, o.output, o.reports(devices, p.Policy))
	}
	index := discovery.IndexOf(devices, args[0])
	if index < 0 {
		return fmt.Errorf("no GPU of this node is %q; 'dxctl devices -o wide' lists them", args[0])
	}
	if o.output != cli.JSON {
		o.output = cli.YAML
	}
	return cli.PrintDocument(stdout, o.output, o.reports(devices, p.Policy)[index])
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
		Wide:   []string{"RESOURCE", "REPLICAS", "LUID", "NUMA", "INSTANCE ID", "NOTES"},
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
				strconv.Itoa(r.Index), r.Description, r.Vendor, memory, r.DriverVersion, r.Kind, r.LocationPath, health,
				r.Resource, strconv.Itoa(r.Replicas), r.LUID, numaNode, r.InstanceID, strings.Join(r.Notes, "; "),
			}
		},
	}
}

// gpuReport describes a GPU. The names of its fields are stable.
type gpuReport struct {
	// Index is the device's place in the list, from 0.
	Index       int    `json:"index"`
	InstanceID  string `json:"instanceID"`
	Description string `json:"description"`
	// Kind is display, compute or none.
	Kind    string `json:"kind"`
	Display bool   `json:"display"`
	Compute bool   `json:"compute"`
	// Resource is the extended resource that offers the device to Replicas
	// containers. NotOffered is why there is none.
	Resource   string `json:"resource,omitempty"`
	Replicas   int    `json:"replicas,omitempty"`
	NotOffered string `json:"notOffered,omitempty"`
	// Health is "healthy" or the problem.
	Health          string                  `json:"health"`
	Notes           []string                `json:"notes,omitempty"`
	Vendor          string                  `json:"vendor"`
	Manufacturer    string                  `json:"manufacturer,omitempty"`
	LocationPath    string                  `json:"locationPath,omitempty"`
	LUID            string                  `json:"luid,omitempty"`
	DedicatedMemory uint64                  `json:"dedicatedMemory"` // in bytes
	Integrated      bool                    `json:"integrated"`
	Detachable      bool                    `json:"detachable"`
	Software        bool                    `json:"software"`
	NUMANode        *int                    `json:"numaNode,omitempty"`
	BusNumber       *uint32                 `json:"busNumber,omitempty"`
	Address         *uint32                 `json:"address,omitempty"`
	Status          string                  `json:"status,omitempty"`  // Windows' flags of the device
	Problem         uint32                  `json:"problem,omitempty"` // Windows' problem code
	DriverKey       string                  `json:"driverKey,omitempty"`
	DriverVersion   string                  `json:"driverVersion,omitempty"`
	DriverStorePath string                  `json:"driverStorePath,omitempty"`
	System32        []discovery.RuntimeFile `json:"system32,omitempty"`
	SysWOW64        []discovery.RuntimeFile `json:"sysWOW64,omitempty"`
	DeviceNodes     []DeviceNode            `json:"deviceNodes,omitempty"`
	Libraries       []discovery.Library     `json:"libraries,omitempty"`
}

// DeviceNode is a device node on the host and in the container.
type DeviceNode struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

func newGPUReports(devices []resources.Device) []gpuReport {
	reports := make([]gpuReport, len(devices))
	for i, d := range devices {
		r := gpuReport{
			Index: i, InstanceID: d.InstanceID, Description: d.Description,
			Kind: cmp.Or(string(d.Kind()), "none"), Display: d.SupportsDisplay, Compute: d.SupportsCompute,
			NotOffered: d.Reason, Health: d.Health.String(), Notes: d.Notes, Vendor: d.VendorID.Name(), Manufacturer: d.Manufacturer,
			LocationPath: d.LocationPath, DedicatedMemory: d.DedicatedMemory,
			Integrated: d.Integrated, Detachable: d.Detachable, Software: d.Software,
			NUMANode: d.NUMANode, BusNumber: d.BusNumber, Address: d.Address, Problem: d.Problem,
			DriverKey: d.DriverKey, DriverVersion: d.DriverVersion, DriverStorePath: d.DriverStorePath,
			System32: d.System32, SysWOW64: d.SysWOW64, Libraries: d.Libraries,
		}
		if d.Rule != nil {
			r.Resource, r.Replicas = d.Rule.Name, d.Rule.Replicas
		}
		if d.LUID != 0 {
			r.LUID = d.LUID.String()
		}
		if d.Status != 0 {
			r.Status = fmt.Sprintf("0x%08X", d.Status)
		}
		for _, node := range d.DeviceNodes {
			r.DeviceNodes = append(r.DeviceNodes, DeviceNode{Source: node.Path, Destination: node.ContainerPath})
		}
		reports[i] = r
	}
	return reports
}
