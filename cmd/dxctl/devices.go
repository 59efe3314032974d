package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"directx-nri/advertiser/resources"
	"directx-nri/cmd/dxctl/terminal"
	"directx-nri/discovery"
	"directx-nri/internal/cli"
	"directx-nri/internal/config"
)

type devicesOptions struct {
	gpuSource
	hostRoot string
	output   string
	watch    bool
	now      func() time.Time
	// rules are the configuration's, nil where that is not known.
	rules []config.Resource
}

func newDevicesCommand() *cobra.Command {
	o := devicesOptions{now: time.Now}
	command := &cobra.Command{
		Use:   "devices [INDEX | PATH | LUID | INSTANCE-ID]",
		Short: "See this node's GPUs",
		Long: `Lists the GPUs of this node: what each is, what it can do, where it is, and
whether a container can be given it. Devices that no container is given are
listed too, with the reason. The index is what --index of other commands and
DIRECTX_VISIBLE_DEVICES count by; it changes when a GPU comes or goes.

Which extended resource offers a GPU, and to how many containers, the rules of
config.yaml say: -o wide, json and yaml have it.

With a GPU's index, location path, LUID or instance ID, all that is known of that
one is told: also the files that its driver lists for containers, where they are in
the container, and which of them are missing on disk. What runtimeFiles in
config.yaml adds and takes away, 'dxctl spec' tells.

On Windows the node is asked, unless an inventory file is named here or in
config.yaml. Elsewhere an inventory file is needed.

Forms of the output:

  table  fits the terminal: where that is narrow, long texts are cut, and columns
         left out
  wide   more columns, and nothing is cut
  name   the location path of each GPU, or its instance ID where it has none, as
         --path takes it
  json, yaml
         all that is known, for scripts. The names of fields stay as they are;
         docs/cli.md explains them. One GPU by itself has "missing" or "problem"
         on files that a container would not get, if "filesChecked" says that
         they were looked for.

With --watch the list is followed by a line for each GPU that comes, goes or
changes, until it is interrupted. As JSON that is one object in each line: "event"
is listed, came, went or changed; "device" is the GPU; and "changes" says which of
its fields changed.`,
		Example: `  dxctl devices
  dxctl devices 0
  dxctl devices 'PCIROOT(0)#PCI(1B00)' -o yaml
  dxctl devices --watch
  dxctl devices --inventory gpus.yaml -o json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: onlyFirst(completeDevice(namedByIndex, discovery.Device.Name)),
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(c.Context(), args, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := command.Flags()
	flags.SortFlags = false
	o.addFlags(flags)
	flags.StringVar(&o.hostRoot, "host-root", "", "`FOLDER` in which the node's root is seen, to look for its files there (default: the root of this system)")
	flags.StringVarP(&o.output, "output", "o", outputTable, "form of the output: "+choices(devicesOutputs()))
	flags.BoolVarP(&o.watch, "watch", "w", false, "go on telling what comes, goes and changes")
	completeValues(command, "output", devicesOutputs()...)
	return command
}

// Forms of an output.
const (
	outputTable = "table"
	outputWide  = "wide"
	outputYAML  = "yaml"
	outputJSON  = "json"
	outputName  = "name"
)

func devicesOutputs() []string {
	return []string{outputTable, outputWide, outputJSON, outputYAML, outputName}
}

func (o *devicesOptions) run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	switch {
	case !slices.Contains(devicesOutputs(), o.output):
		return cli.Usage("--output %q is none of %s", o.output, choices(devicesOutputs()))
	case o.watch && len(args) > 0:
		return cli.Usage("--watch follows all GPUs: name none of them")
	case o.watch && (o.output == outputYAML || o.output == outputName):
		return cli.Usage("--watch has no form %s: use table, wide or json", o.output)
	case o.watch:
		return o.follow(ctx, stdout, stderr)
	}
	if err := checkHostRoot(o.hostRoot); err != nil {
		return err
	}
	source, err := o.begin(stderr, io.Discard)
	if err != nil {
		return err
	}
	devices, err := source.Devices(ctx)
	if err != nil {
		return err
	}
	if len(args) > 0 {
		index, err := findDevice(args[0], devices)
		if err != nil {
			return err
		}
		return o.tellOne(stdout, index, o.assign(devices)[index])
	}
	return o.tellAll(stdout, stderr, devices)
}

// begin reads the configuration, and returns where the GPUs come from, which tells
// log of what it could not read since.
func (o *devicesOptions) begin(stderr, log io.Writer) (discovery.Source, error) {
	c, known, err := o.known(stderr)
	if err != nil {
		return nil, err
	}
	if known {
		o.rules = c.Resources
	}
	return o.openAs(c, log)
}

// assign says of each device which resource offers it, and of none without rules.
func (o *devicesOptions) assign(devices []discovery.Device) []resources.Assigned {
	assigned := resources.Assign(devices, resources.FromConfig(o.rules))
	if o.rules == nil {
		for i := range assigned {
			assigned[i].Reason = ""
		}
	}
	return assigned
}

// tellAll prints the list.
func (o *devicesOptions) tellAll(stdout, stderr io.Writer, devices []discovery.Device) error {
	switch o.output {
	case outputJSON, outputYAML:
		reports := make([]deviceReport, len(devices))
		for i, a := range o.assign(devices) {
			reports[i] = reportDevice(i, a)
		}
		return printAs(stdout, o.output, reports)
	case outputName:
		for _, d := range devices {
			if _, err := fmt.Fprintln(stdout, terminal.Printable(d.Name())); err != nil {
				return err
			}
		}
		return nil
	}
	if len(devices) == 0 {
		fmt.Fprintln(stderr, "This node has no GPU.")
		return nil
	}
	return printDevices(stdout, terminal.Of(stdout, os.Getenv), o.assign(devices), o.output == outputWide)
}

// findDevice returns the index of the device that name means: by its index, its
// location path, its instance ID, or its LUID in hexadecimal. Unlike what is given
// to a container, it may be one that cannot be used.
func findDevice(name string, devices []discovery.Device) (int, error) {
	if index, err := strconv.ParseUint(name, 10, 32); err == nil {
		if index < uint64(len(devices)) {
			return int(index), nil
		}
	}
	luid, isLUID := discovery.ParseLUID(name)
	i := slices.IndexFunc(devices, func(d discovery.Device) bool {
		return isLUID && luid != 0 && d.LUID == luid || name != "" && strings.EqualFold(d.LocationPath, name) || strings.EqualFold(d.InstanceID, name)
	})
	if i < 0 {
		return 0, fmt.Errorf("none of this node's %d GPU(s) is %q; 'dxctl devices -o wide' lists them", len(devices), name)
	}
	return i, nil
}

// choices returns values as a text: a, b or c.
func choices(values []string) string {
	last := len(values) - 1
	if last < 1 {
		return strings.Join(values, "")
	}
	return strings.Join(values[:last], ", ") + " or " + values[last]
}

// printAs writes v as YAML or JSON.
func printAs(w io.Writer, output string, v any) error {
	if output == outputJSON {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false) // Instance IDs are full of ampersands.
		return encoder.Encode(v)
	}
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	if err := encoder.Encode(v); err != nil {
		return err
	}
	return encoder.Close()
}
