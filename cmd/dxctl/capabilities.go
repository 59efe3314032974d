package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/internal/capabilities"
)

type capabilitiesOptions struct {
	nodeFacts
	output string
}

func newCapabilitiesCommand() *cobra.Command {
	o := capabilitiesOptions{nodeFacts: nodeFacts{target: target{os: runtime.GOOS}}}
	command := &cobra.Command{
		Use:   "capabilities",
		Short: "Show what this node supports",
		Long: `Shows how containers are assigned GPUs, the versions of containerd and the shim,
whether NRI is enabled, which runtime handlers use the shim, and the schemas of HCS.`,
		Example: `  dxctl capabilities -o json`,
		RunE:    func(c *cobra.Command, _ []string) error { return o.run(c.Context(), c.OutOrStdout()) },
	}
	o.addFlags(command.Flags())
	command.Flags().StringVarP(&o.output, "output", "o", outputTable, "output format: table, json or yaml")
	return command
}

// capabilitiesReport is the output. The names of its fields are stable.
type capabilitiesReport struct {
	// OS is "windows" or "linux".
	OS string `json:"os" yaml:"os"`
	// Windows is nil on other systems.
	Windows *windowsReport `json:"windows,omitempty" yaml:"windows,omitempty"`
	// PolicyError is why the node policy cannot be used.
	PolicyError string `json:"policyError,omitempty" yaml:"policyError,omitempty"`
	// AssignmentMode is the configured mode, and Assignment the mode in force:
	// "location-path", "class-guid" or "unknown". Reason is why.
	AssignmentMode string `json:"assignmentMode" yaml:"assignmentMode"`
	Assignment     string `json:"assignment" yaml:"assignment"`
	Reason         string `json:"reason" yaml:"reason"`
	// Injection is "runtime" or "kubelet".
	Injection  string           `json:"injection" yaml:"injection"`
	Containerd containerdReport `json:"containerd" yaml:"containerd"`
	Shim       shimReport       `json:"shim" yaml:"shim"`
}

type windowsReport struct {
	Version string   `json:"version" yaml:"version"`
	Build   uint32   `json:"build" yaml:"build"`
	Server  bool     `json:"server" yaml:"server"`
	Schemas []string `json:"hcsSchemas,omitempty" yaml:"hcsSchemas,omitempty"`
	// HCSError is why the Host Compute Service does not report its schemas.
	HCSError string `json:"hcsError,omitempty" yaml:"hcsError,omitempty"`
}

type containerdReport struct {
	Version string `json:"version,omitempty" yaml:"version,omitempty"`
	Error   string `json:"error,omitempty" yaml:"error,omitempty"`
	// Config is its configuration file.
	Config      string `json:"config" yaml:"config"`
	ConfigError string `json:"configError,omitempty" yaml:"configError,omitempty"`
	// NRI is "on", "off" or "unknown".
	NRI string `json:"nri" yaml:"nri"`
	// Handlers are the runtime handlers that can have GPUs.
	Handlers []handlerReport `json:"handlers" yaml:"handlers"`
}

type shimReport struct {
	Path      string `json:"path" yaml:"path"`
	Installed bool   `json:"installed" yaml:"installed"`
	Version   string `json:"version,omitempty" yaml:"version,omitempty"`
	Error     string `json:"error,omitempty" yaml:"error,omitempty"`
}

const unknown = "unknown"

func (o *capabilitiesOptions) run(ctx context.Context, stdout io.Writer) error {
	if err := errors.Join(checkChoice("output", o.output, outputTable, outputJSON, outputYAML), o.check()); err != nil {
		return err
	}
	r := reportCapabilities(o.gatherRuntime(ctx))
	if o.output != outputTable {
		return printAs(stdout, o.output, r)
	}
	return r.print(stdout)
}

func reportCapabilities(f doctor.Facts) capabilitiesReport {
	p := f.Config.Policy
	r := capabilitiesReport{
		OS: f.OS, PolicyError: errorText(f.Config.Err), AssignmentMode: string(p.Assignment), Injection: string(p.Injection),
		Containerd: reportContainerd(f), Shim: reportShim(f.Shims),
	}
	assignment := capabilities.Resolve(p.Assignment, f.OS, func() (capabilities.Capabilities, error) { return *f.Windows, nil })
	r.Assignment, r.Reason = string(assignment.Mode()), assignment.Reason
	if w := f.Windows; w != nil {
		r.Windows = &windowsReport{Version: w.Windows.String(), Build: w.Windows.Build, Server: w.Windows.Server, HCSError: errorText(w.SchemasErr)}
		for _, schema := range w.Schemas {
			r.Windows.Schemas = append(r.Windows.Schemas, schema.String())
		}
		if errors.Is(w.SchemasErr, context.DeadlineExceeded) {
			r.Windows.Version, r.Assignment, r.Reason = unknown, unknown, r.Windows.HCSError
		}
	}
	return r
}

func reportContainerd(f doctor.Facts) containerdReport {
	c := f.Containerd
	r := containerdReport{Version: c.Version, Error: errorText(c.Err), Config: c.ConfigPath, ConfigError: errorText(c.FileErr), NRI: unknown, Handlers: []handlerReport{}}
	if f.NRI.PluginErr == nil || c.FileErr == nil {
		r.NRI = onOff(f.OS != "windows" && (f.NRI.PluginErr == nil || c.File.NRI))
	}
	for _, h := range reportHandlers(f) {
		if h.Eligible || h.Routed || h.Loaded {
			r.Handlers = append(r.Handlers, h)
		}
	}
	return r
}

// reportShim returns the first shim that exists.
func reportShim(shims []doctor.Shim) shimReport {
	var r shimReport
	for _, s := range shims {
		r = shimReport{Path: s.Path, Version: s.Version, Installed: !errors.Is(s.Err, os.ErrNotExist)}
		if r.Installed {
			r.Error = errorText(s.Err)
			break
		}
	}
	return r
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (r capabilitiesReport) print(w io.Writer) error {
	table := newTable(w)
	if windows := r.Windows; windows != nil {
		table.row("Windows", windows.Version)
		table.row("HCS schemas", cmp.Or(strings.Join(windows.Schemas, ", "), "unknown: "+windows.HCSError))
	}
	if r.PolicyError != "" {
		table.row("Node policy", r.PolicyError)
	}
	table.row("Assignment", fmt.Sprintf("%s (assignmentMode: %s): %s", r.Assignment, r.AssignmentMode, r.Reason))
	table.row("Injection", r.Injection)
	c := r.Containerd
	table.row("containerd", cmp.Or(c.Version, "unknown: "+c.Error))
	table.row("Configuration", strings.TrimSuffix(c.Config+": "+c.ConfigError, ": "))
	table.row("NRI", c.NRI)
	for _, h := range c.Handlers {
		table.row("Handler "+h.Name, h.shimUse())
	}
	switch {
	case r.Shim.Error != "":
		table.row("Runtime shim", r.Shim.Path+": "+r.Shim.Error)
	case r.Shim.Installed:
		table.row("Runtime shim", r.Shim.Path+", version "+r.Shim.Version)
	default:
		table.row("Runtime shim", "not installed")
	}
	return table.Flush()
}

// shimUse returns whether a handler uses the shim.
func (h handlerReport) shimUse() string {
	switch {
	case h.Routed && h.Loaded:
		return "uses the shim"
	case h.Routed:
		return "uses the shim when containerd has loaded its configuration"
	case h.Loaded:
		return "uses the shim until containerd is restarted"
	}
	return "does not use the shim"
}
