// Package show is the commands that show GPUs, their containers, and what containers get.
package show

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/cmd/dxctl/gpus"
	"github.com/directx-nri/directx-nri/cmd/dxctl/printer"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/policy"
)

type devicesOptions struct {
	gpus.Node
	gpus.DriverFiles
	output string
	watch  bool
	policy policy.Policy
}

// NewDevicesCommand returns the command.
func NewDevicesCommand() *cobra.Command {
	o := devicesOptions{}
	command := &cobra.Command{
		Use:   "devices [INDEX | PATH | LUID | INSTANCE-ID]",
		Short: "List this node's GPUs",
		Long: `Lists the GPUs of this node. The index changes if a GPU is added or removed.

With a GPU's index, location path, LUID or instance ID, prints its details as YAML, and
its missing driver files. With -o name, lists location paths or instance IDs.`,
		Example: `  dxctl devices 0
  dxctl devices --watch
  dxctl devices --inventory gpus.yaml -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(c.Context(), args, c.OutOrStdout(), c.ErrOrStderr())
		},
		ValidArgsFunction: o.Complete(gpus.Report.Name),
	}
	flags := command.Flags()
	o.Node.AddFlags(flags)
	o.DriverFiles.AddFlags(flags)
	cli.AddChoice(command, &o.output, "output", "o", "output format", printer.Table, printer.Wide, printer.JSON, printer.YAML, printer.Name)
	flags.BoolVarP(&o.watch, "watch", "w", false, "print the list again after each change")
	return command
}

func (o *devicesOptions) run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if err := o.Check(); err != nil {
		return err
	}
	if o.watch && len(args) > 0 {
		return cli.Usage("--watch excludes the name of a GPU")
	}
	source, p, err := o.Open(stderr)
	if err != nil {
		return err
	}
	o.policy = p
	devices, err := source.Devices(ctx)
	switch {
	case err != nil:
		return err
	case o.watch:
		return o.follow(ctx, source, devices, stdout, stderr)
	case len(args) == 0:
		return o.list(stdout, stderr, devices)
	}
	index, err := findDevice(args[0], devices)
	if err != nil {
		return err
	}
	r := gpus.NewReports(devices, o.policy, runtime.GOOS)[index]
	switch o.output {
	case printer.Name, printer.Wide:
		return o.print(stdout, []gpus.Report{r})
	case printer.JSON:
		return printer.Document(stdout, printer.JSON, o.Detail(r))
	}
	return printer.Document(stdout, printer.YAML, o.Detail(r))
}

func (o *devicesOptions) list(stdout, stderr io.Writer, devices []discovery.Device) error {
	reports := gpus.NewReports(devices, o.policy, runtime.GOOS)
	switch {
	case o.output == printer.JSON || o.output == printer.YAML:
		return printer.Document(stdout, o.output, reports)
	case len(devices) == 0:
		fmt.Fprintln(stderr, "This node has no GPU.")
		return nil
	}
	return o.print(stdout, reports)
}

// print prints a name or a row of each device.
func (o *devicesOptions) print(stdout io.Writer, reports []gpus.Report) error {
	if o.output == printer.Name {
		var names []string
		for _, r := range reports {
			names = append(names, r.Name())
		}
		return printer.Names(stdout, names...)
	}
	table := printer.NewTable(stdout)
	header := []string{"INDEX", "DESCRIPTION", "VENDOR", "MEMORY", "DRIVER", "KIND", "LOCATION PATH", "HEALTH"}
	if o.output == printer.Wide {
		header = append(header, "RESOURCE", "REPLICAS", "LUID", "NUMA", "INSTANCE ID", "NOTES")
	}
	table.Row(header...)
	for _, r := range reports {
		cells := []string{strconv.Itoa(r.Index), r.Description, r.Vendor, r.Memory(), r.DriverVersion, r.Kind, r.LocationPath, r.Availability()}
		if o.output == printer.Wide {
			cells = append(cells, r.Resource, strconv.Itoa(r.Replicas), r.LUID, r.NUMA(), r.InstanceID, strings.Join(r.Notes, "; "))
		}
		table.Row(cells...)
	}
	return table.Flush()
}

// follow prints devices, and those of source after each change until ctx ends.
func (o *devicesOptions) follow(ctx context.Context, source discovery.Source, devices []discovery.Device, stdout, stderr io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changed, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- source.Watch(ctx, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	for {
		if err := o.list(stdout, stderr, devices); err != nil {
			return err
		}
		before := devices
		for reflect.DeepEqual(before, devices) {
			select {
			case err := <-ended:
				if ctx.Err() != nil {
					return nil
				}
				return errors.Join(err, errors.New("the watch of the GPUs ended unexpectedly"))
			case <-changed:
			}
			var err error
			if devices, err = source.Devices(ctx); err != nil {
				return err
			}
		}
		fmt.Fprintf(stderr, "\n%s: the GPUs have changed\n", time.Now().Format(time.DateTime))
	}
}

// findDevice returns the index of a device as [discovery.IndexOf] does, including one that
// containers cannot have.
func findDevice(name string, devices []discovery.Device) (int, error) {
	i := discovery.IndexOf(devices, name)
	if i < 0 {
		return 0, fmt.Errorf("none of the %d GPU(s) of this node is %q; 'dxctl devices -o wide' lists them", len(devices), name)
	}
	return i, nil
}
