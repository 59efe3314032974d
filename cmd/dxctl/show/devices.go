// Package show has the commands that list GPUs and allocations, and print what a container gets.
package show

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/cmd/dxctl/nodegpus"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/policy"
)

type devicesOptions struct {
	nodegpus.Flags
	output string
	watch  bool
}

// NewDevicesCommand returns 'dxctl devices'.
func NewDevicesCommand() *cobra.Command {
	o := devicesOptions{}
	command := &cobra.Command{
		Use:   "devices [INDEX | PATH | LUID | INSTANCE-ID]",
		Short: "List this node's GPUs",
		Long: `Lists the GPUs of this node. The index changes if a GPU is added or removed.

With a GPU's index, location path, LUID or instance ID, prints its details as YAML. With
-o name, lists location paths or instance IDs.`,
		Example: `  dxctl devices 0
  dxctl devices --watch
  dxctl devices --inventory gpus.yaml -o json`,
		Args: cli.Arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(c.Context(), args, c.OutOrStdout(), c.ErrOrStderr())
		},
		ValidArgsFunction: o.Complete,
	}
	flags := command.Flags()
	o.AddFlags(flags)
	nodegpus.AddHostRootFlag(flags, &o.HostRoot)
	cli.AddOutputFlag(command, &o.output, cli.Table, cli.Wide, cli.JSON, cli.YAML, cli.Name)
	flags.BoolVarP(&o.watch, "watch", "w", false, "print the list again after each change")
	return command
}

func (o *devicesOptions) run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if o.watch && len(args) > 0 {
		return cli.UsageError("--watch excludes the name of a GPU")
	}
	source, p, err := o.Open(stderr, runtime.GOOS)
	if err != nil {
		return err
	}
	if o.watch {
		return o.follow(ctx, source, p.Policy, stdout, stderr)
	}
	devices, err := source.Devices(ctx)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		return o.list(stdout, stderr, devices, p.Policy)
	}
	index := discovery.IndexOf(devices, args[0])
	if index < 0 {
		return fmt.Errorf("no GPU of this node is %q; 'dxctl devices -o wide' lists them", args[0])
	}
	r := o.reports(devices, p.Policy)[index]
	switch o.output {
	case cli.Name, cli.Wide:
		return deviceList().Print(stdout, o.output, []nodegpus.Report{r})
	case cli.Table:
		o.output = cli.YAML
	}
	return cli.PrintDocument(stdout, o.output, r)
}

func (o *devicesOptions) list(stdout, stderr io.Writer, devices []discovery.Device, p policy.Policy) error {
	if len(devices) == 0 && o.output != cli.JSON && o.output != cli.YAML {
		fmt.Fprintln(stderr, "This node has no GPU.")
	}
	return deviceList().Print(stdout, o.output, o.reports(devices, p))
}

// reports returns the reports of devices, for this system unless they are those of an inventory of any
// node.
func (o *devicesOptions) reports(devices []discovery.Device, p policy.Policy) []nodegpus.Report {
	nodeOS := runtime.GOOS
	if o.Inventory != "" {
		nodeOS = ""
	}
	return nodegpus.NewReports(devices, p, nodeOS)
}

func deviceList() cli.List[nodegpus.Report] {
	return cli.List[nodegpus.Report]{
		Name:   func(r nodegpus.Report) string { return cmp.Or(r.LocationPath, r.InstanceID) },
		Header: []string{"INDEX", "DESCRIPTION", "VENDOR", "MEMORY", "DRIVER", "KIND", "LOCATION PATH", "HEALTH"},
		Wide:   []string{"RESOURCE", "REPLICAS", "LUID", "NUMA", "INSTANCE ID", "NOTES"},
		Cells: func(r nodegpus.Report) []string {
			memory, numaNode, health := "", "", r.Health
			if r.DedicatedMemory > 0 {
				memory = humanize.IBytes(r.DedicatedMemory)
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

// follow prints the devices of source at once and after each change, until ctx ends.
func (o *devicesOptions) follow(ctx context.Context, source discovery.Source, p policy.Policy, stdout, stderr io.Writer) error {
	var before []discovery.Device
	printed := false
	return nodegpus.Repeat(ctx, func() error {
		devices, err := source.Devices(ctx)
		if err != nil || printed && reflect.DeepEqual(before, devices) {
			return err
		}
		if printed {
			fmt.Fprintf(stderr, "\n%s: the GPUs have changed\n", time.Now().Format(time.DateTime))
		}
		before, printed = devices, true
		return o.list(stdout, stderr, devices, p)
	})
}
