package main

import (
	"context"
	"encoding/json"
	"io"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"directx-nri/discovery"
	"directx-nri/internal/cli"
)

type devicesOptions struct {
	gpuSource
	output string
}

func newDevicesCommand() *cobra.Command {
	var o devicesOptions
	command := &cobra.Command{
		Use:   "devices",
		Short: "Tell all that is known of this node's GPUs",
		Long: `Tells what is known of each GPU of this node: what it is, where it is, what it
can do, which files of its driver a container is given, and what is wrong with
it. Devices that no container is given are listed too, with the reason.

On Windows the node is asked, unless an inventory file is named here or in
config.yaml. Elsewhere an inventory file is needed.`,
		Example: `  dxctl devices
  dxctl devices --inventory gpus.yaml -o json`,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), c.OutOrStdout()) },
	}
	flags := command.Flags()
	flags.SortFlags = false
	o.addFlags(flags)
	flags.StringVarP(&o.output, "output", "o", outputYAML, "form of the output: yaml or json")
	return command
}

const (
	outputYAML = "yaml"
	outputJSON = "json"
)

func (o *devicesOptions) run(ctx context.Context, stdout io.Writer) error {
	if o.output != outputYAML && o.output != outputJSON {
		return cli.Usage("--output %q is neither %s nor %s", o.output, outputYAML, outputJSON)
	}
	devices, err := o.devices(ctx)
	if err != nil {
		return err
	}
	reports := make([]deviceReport, len(devices))
	for i, d := range devices {
		reports[i] = reportDevice(i, d)
	}
	return printAs(stdout, o.output, reports)
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

// deviceReport is what is told of a device. The names of its fields are for
// scripts, and stay.
type deviceReport struct {
	Index           int          `json:"index" yaml:"index"`
	InstanceID      string       `json:"instanceID" yaml:"instanceID"`
	Description     string       `json:"description" yaml:"description"`
	Kind            string       `json:"kind" yaml:"kind"`
	Display         bool         `json:"display" yaml:"display"`
	Compute         bool         `json:"compute" yaml:"compute"`
	Health          string       `json:"health" yaml:"health"`
	Notes           []string     `json:"notes,omitempty" yaml:"notes,omitempty"`
	Vendor          string       `json:"vendor" yaml:"vendor"`
	Manufacturer    string       `json:"manufacturer,omitempty" yaml:"manufacturer,omitempty"`
	LocationPath    string       `json:"locationPath,omitempty" yaml:"locationPath,omitempty"`
	LUID            string       `json:"luid,omitempty" yaml:"luid,omitempty"`
	DedicatedMemory uint64       `json:"dedicatedMemory" yaml:"dedicatedMemory"`
	Integrated      bool         `json:"integrated" yaml:"integrated"`
	Detachable      bool         `json:"detachable" yaml:"detachable"`
	Software        bool         `json:"software" yaml:"software"`
	NUMANode        *int         `json:"numaNode,omitempty" yaml:"numaNode,omitempty"`
	BusNumber       *uint32      `json:"busNumber,omitempty" yaml:"busNumber,omitempty"`
	Address         *uint32      `json:"address,omitempty" yaml:"address,omitempty"`
	Status          uint32       `json:"status" yaml:"status"`
	Problem         uint32       `json:"problem" yaml:"problem"`
	DriverKey       string       `json:"driverKey,omitempty" yaml:"driverKey,omitempty"`
	DriverVersion   string       `json:"driverVersion,omitempty" yaml:"driverVersion,omitempty"`
	DriverStorePath string       `json:"driverStorePath,omitempty" yaml:"driverStorePath,omitempty"`
	System32        []fileReport `json:"system32,omitempty" yaml:"system32,omitempty"`
	SysWOW64        []fileReport `json:"sysWOW64,omitempty" yaml:"sysWOW64,omitempty"`
	DeviceNodes     []fileReport `json:"deviceNodes,omitempty" yaml:"deviceNodes,omitempty"`
	Libraries       []fileReport `json:"libraries,omitempty" yaml:"libraries,omitempty"`
}

// fileReport is a file, relative to the driver store path where it is one of the
// driver's, and what it is in a container.
type fileReport struct {
	Source      string `json:"source" yaml:"source"`
	Destination string `json:"destination" yaml:"destination"`
}

func reportDevice(index int, d discovery.Device) deviceReport {
	r := deviceReport{
		Index: index, InstanceID: d.InstanceID, Description: d.Description,
		Kind: string(d.Kind()), Display: d.SupportsDisplay, Compute: d.SupportsCompute,
		Health: d.Health.String(), Notes: d.Notes, Vendor: d.VendorID.String(), Manufacturer: d.Manufacturer,
		LocationPath: d.LocationPath, DedicatedMemory: d.DedicatedMemory,
		Integrated: d.Integrated, Detachable: d.Detachable, Software: d.Software,
		NUMANode: d.NUMANode, BusNumber: d.BusNumber, Address: d.Address, Status: d.Status, Problem: d.Problem,
		DriverKey: d.DriverKey, DriverVersion: d.DriverVersion, DriverStorePath: d.DriverStorePath,
		System32: runtimeFileReports(d.System32), SysWOW64: runtimeFileReports(d.SysWOW64),
	}
	if d.LUID != 0 {
		r.LUID = d.LUID.String()
	}
	if r.Kind == "" {
		r.Kind = "none"
	}
	for _, node := range d.DeviceNodes {
		r.DeviceNodes = append(r.DeviceNodes, fileReport{node.Path, node.ContainerPath})
	}
	for _, library := range d.Libraries {
		r.Libraries = append(r.Libraries, fileReport(library))
	}
	return r
}

func runtimeFileReports(files []discovery.RuntimeFile) []fileReport {
	var reports []fileReport
	for _, f := range files {
		reports = append(reports, fileReport(f))
	}
	return reports
}
