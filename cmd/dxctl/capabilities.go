package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/cmd/dxctl/terminal"
	"directx-nri/internal/capabilities"
	"directx-nri/internal/cli"
	"directx-nri/internal/config"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/paths"
	"directx-nri/internal/policy"
	"directx-nri/internal/readiness"
	"directx-nri/internal/shimfile"
)

type capabilitiesOptions struct {
	target
	gpuSource  // of which it takes the configuration alone
	shim       string
	runtimeDir string
	output     string
	timeout    time.Duration
}

func newCapabilitiesCommand() *cobra.Command {
	places := paths.Default()
	o := capabilitiesOptions{target: target{os: runtime.GOOS}}
	command := &cobra.Command{
		Use:   "capabilities",
		Short: "Tell what this node can do with GPUs in containers",
		Long: `Tells what this node can do with GPUs in containers: containerd's version, whether
NRI is on, which runtime handlers go through our shim, and of what version that
is; and by what containers are given GPUs, and by whom, as config.yaml has it. On
Windows also which Windows this is, and which schemas its container service (HCS)
understands: they decide whether containers can be given single GPUs or only all of
them, where assignmentMode is auto.

What cannot be found out is left out, and it is said why. 'dxctl doctor' says
what is wrong, and what to do.`,
		Example: `  dxctl capabilities

  # for programs; the names of the fields stay
  dxctl capabilities -o json`,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), c.OutOrStdout()) },
	}
	flags := command.Flags()
	o.target.addFlags(flags)
	o.addShimConfig(flags)
	flags.StringVar(&o.shim, "shim", filepath.Join(places.ShimDir, shimfile.FileName(runtime.GOOS)), "our runtime shim, where no runtime handler goes through one and containerd finds none")
	flags.StringVar(&o.runtimeDir, "runtime-dir", places.Runtime, "folder of the socket by which the NRI plugin is seen to be there; the same as the plugin's")
	flags.DurationVar(&o.timeout, "timeout", askTimeout, "how long each question may take")
	flags.StringVarP(&o.output, "output", "o", outputTable, "form of the output: table, json or yaml")
	return command
}

// capabilitiesReport is what is told. The names of its fields are for scripts,
// and stay. Those of Windows are there on Windows only.
type capabilitiesReport struct {
	// OS is "windows" or "linux".
	OS             string `json:"os" yaml:"os"`
	*windowsReport `yaml:",inline"`
	// Config is our configuration file, and ConfigError why it cannot be used; where
	// its last good copy is in force, both that and what is wrong are told.
	Config      string `json:"config" yaml:"config"`
	ConfigError string `json:"configError,omitempty" yaml:"configError,omitempty"`
	// AssignmentMode is as configured, and Assignment what it comes to here:
	// "location-path" or "class-guid". Reason says why.
	AssignmentMode string `json:"assignmentMode" yaml:"assignmentMode"`
	Assignment     string `json:"assignment" yaml:"assignment"`
	Reason         string `json:"reason" yaml:"reason"`
	// Injection is "runtime", the NRI plugin or the shim, or "kubelet".
	Injection  string           `json:"injection" yaml:"injection"`
	Containerd containerdReport `json:"containerd" yaml:"containerd"`
	Shim       shimReport       `json:"shim" yaml:"shim"`
}

type windowsReport struct {
	Windows string   `json:"windows" yaml:"windows"`
	Build   uint32   `json:"build" yaml:"build"`
	Server  bool     `json:"server" yaml:"server"`
	Schemas []string `json:"hcsSchemas,omitempty" yaml:"hcsSchemas,omitempty"`
	// HCSError is why HCS does not say which.
	HCSError string `json:"hcsError,omitempty" yaml:"hcsError,omitempty"`
}

type containerdReport struct {
	// Version is that of the running containerd, "" where Error says why it does
	// not tell.
	Version string `json:"version,omitempty" yaml:"version,omitempty"`
	Error   string `json:"error,omitempty" yaml:"error,omitempty"`
	// Config is its configuration file, ConfigError why that cannot be used.
	Config      string `json:"config" yaml:"config"`
	ConfigError string `json:"configError,omitempty" yaml:"configError,omitempty"`
	// NRI is "on", "off" or "unknown", and NRIFrom how that is known: "plugin",
	// because ours is registered, or "config", because the file says so.
	NRI     string `json:"nri" yaml:"nri"`
	NRIFrom string `json:"nriFrom,omitempty" yaml:"nriFrom,omitempty"`
	// Handlers are the runtime handlers that can have GPUs or go through our shim.
	Handlers []handlerCapability `json:"handlers" yaml:"handlers"`
}

type handlerCapability struct {
	Name string `json:"name" yaml:"name"`
	// Eligible tells that its containers can have GPUs, Routed that they go
	// through our shim by the file, and Loaded by the running containerd.
	Eligible bool `json:"eligible" yaml:"eligible"`
	Routed   bool `json:"routed" yaml:"routed"`
	Loaded   bool `json:"loaded" yaml:"loaded"`
}

type shimReport struct {
	// Path is where it is, or would be installed.
	Path      string `json:"path" yaml:"path"`
	Installed bool   `json:"installed" yaml:"installed"`
	Version   string `json:"version,omitempty" yaml:"version,omitempty"`
	Error     string `json:"error,omitempty" yaml:"error,omitempty"`
}

// assignUnknown is told where Windows does not answer.
const assignUnknown = "unknown"

func (o *capabilitiesOptions) run(ctx context.Context, stdout io.Writer) error {
	if o.output != outputTable && o.output != outputYAML && o.output != outputJSON {
		return cli.Usage("--output %q is none of %s, %s, %s", o.output, outputTable, outputJSON, outputYAML)
	}
	if err := o.check(); err != nil {
		return err
	}
	if err := checkTimeout(o.timeout); err != nil {
		return err
	}
	r := o.look(ctx)
	if o.output != outputTable {
		return printAs(stdout, o.output, r)
	}
	return r.print(stdout, terminal.Of(stdout, os.Getenv))
}

// checkTimeout returns an error for a time in which nobody can answer.
func checkTimeout(d time.Duration) error {
	if d <= 0 {
		return cli.Usage("--timeout %s is too short: nobody could answer", d)
	}
	return nil
}

// look asks each part of the node, and takes no answer for an answer too.
func (o *capabilitiesOptions) look(ctx context.Context) capabilitiesReport {
	r := capabilitiesReport{OS: o.os}
	windows := doctor.AskWindows(ctx, o.timeout)
	if windows != nil {
		w := reportWindows(*windows)
		r.windowsReport = &w
	}
	value, bad, configErr := config.ReadOrLastGood(o.file, config.Environment(os.Environ())...)
	if configErr != nil {
		value = config.Default()
	}
	r.configured(o.file, value, errors.Join(bad, configErr), windows)
	c, shims := doctor.GatherContainerd(ctx, doctor.Node{
		OS: o.os, Shim: o.shim, ContainerdConfig: o.config, ContainerdMajor: o.major, CRISocket: o.criSocket, Timeout: o.timeout,
	})
	r.Containerd = reportContainerd(c, o.os, o.pluginRegistered(ctx))
	r.Shim = reportShim(shims)
	return r
}

// pluginRegistered tells whether our NRI plugin is registered with containerd.
func (o *capabilitiesOptions) pluginRegistered(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	return o.os != "windows" && readiness.Check(ctx, filepath.Join(o.runtimeDir, readiness.SocketName)) == nil
}

// configured tells what the configuration c, of the file at path, comes to on a
// node of which windows is known, nil where it is another system. wrong is what is
// wrong with the file.
func (r *capabilitiesReport) configured(path string, c config.Config, wrong error, windows *capabilities.Capabilities) {
	r.Config, r.ConfigError, r.Injection = path, errorText(wrong), string(c.Injection)
	r.AssignmentMode = string(c.Assignment)
	if c.Assignment == config.AssignAuto && windows != nil && unanswered(*windows) {
		r.Assignment, r.Reason = assignUnknown, "Windows did not answer"
		return
	}
	assignment := capabilities.Resolve(policy.Assignment(c.Assignment), c.ContainerOS, func() (capabilities.Capabilities, error) {
		if windows == nil {
			return capabilities.Capabilities{}, errors.ErrUnsupported
		}
		return *windows, nil
	})
	r.Assignment, r.Reason = string(assignment.Mode()), assignment.Reason
}

// unanswered tells that Windows did not answer in time.
func unanswered(c capabilities.Capabilities) bool { return c.Windows.Build == 0 && c.SchemasErr != nil }

func reportWindows(c capabilities.Capabilities) windowsReport {
	if unanswered(c) {
		return windowsReport{Windows: assignUnknown, HCSError: c.SchemasErr.Error()}
	}
	r := windowsReport{Windows: c.Windows.String(), Build: c.Windows.Build, Server: c.Windows.Server}
	if c.SchemasErr != nil {
		r.HCSError = c.SchemasErr.Error()
		return r
	}
	for _, schema := range c.Schemas {
		r.Schemas = append(r.Schemas, schema.String())
	}
	return r
}

const (
	nriUnknown = "unknown"
	fromPlugin = "plugin"
	fromConfig = "config"
)

func reportContainerd(c doctor.Containerd, os string, registered bool) containerdReport {
	r := containerdReport{Version: c.Version, Config: c.ConfigPath, NRI: nriUnknown, Handlers: []handlerCapability{}}
	if c.Err != nil {
		r.Error = c.Err.Error()
	}
	switch {
	case registered:
		r.NRI, r.NRIFrom = onOff(true), fromPlugin
	case c.FileErr == nil && doctor.KnowsNRI(c.Version):
		r.NRI, r.NRIFrom = onOff(c.File.NRI), fromConfig
	case c.FileErr == nil:
		r.NRI, r.NRIFrom = onOff(false), fromConfig
	}
	if c.FileErr != nil {
		r.ConfigError = c.FileErr.Error()
	}
	byName := map[string]int{}
	for _, h := range c.File.Handlers {
		if h.Eligible(os) || h.Ours() {
			byName[h.Name] = len(r.Handlers)
			r.Handlers = append(r.Handlers, handlerCapability{Name: h.Name, Eligible: h.Eligible(os), Routed: h.Ours()})
		}
	}
	for _, h := range c.Loaded {
		if !h.Ours() {
			continue
		}
		i, ok := byName[h.Name]
		if !ok {
			i = len(r.Handlers)
			like := containerdconfig.Handler{RuntimeType: h.RuntimeType, SandboxIsolation: int64(h.SandboxIsolation)}
			r.Handlers = append(r.Handlers, handlerCapability{Name: h.Name, Eligible: like.Eligible(os)})
		}
		r.Handlers[i].Loaded = true
	}
	return r
}

// reportShim tells of the first shim that is there.
func reportShim(shims []doctor.Shim) shimReport {
	var first *shimReport
	for _, s := range shims {
		r := shimReport{Path: s.Path, Version: s.Version, Installed: s.Err == nil || !errors.Is(s.Err, os.ErrNotExist)}
		if s.Err != nil && r.Installed {
			r.Error = s.Err.Error()
		}
		if r.Installed {
			return r
		}
		if first == nil {
			first = &r
		}
	}
	if first == nil {
		return shimReport{}
	}
	return *first
}

func (r capabilitiesReport) print(w io.Writer, to terminal.Terminal) error {
	table := terminal.Table{Columns: []terminal.Column{{Title: "WHAT"}, {Title: "HERE"}}}
	row := func(what, here string) {
		table.Add(terminal.Cell{Text: what}, terminal.Cell{Text: here})
	}
	if windows := r.windowsReport; windows != nil {
		row("Windows", windows.Windows)
		row("HCS schemas", cmp.Or(strings.Join(windows.Schemas, ", "), "unknown: "+windows.HCSError))
	}
	row("our file", r.Config)
	if r.ConfigError != "" {
		row("which", r.ConfigError)
	}
	row("assignmentMode", r.AssignmentMode)
	row("GPUs by", r.Assignment)
	row("because", r.Reason)
	row("injection", injectionWords(r.Injection))
	c := r.Containerd
	row("containerd", cmp.Or(c.Version, "unknown: "+c.Error))
	row("its file", c.Config)
	if c.ConfigError != "" {
		row("which", c.ConfigError)
	}
	nri := c.NRI
	if c.NRIFrom != "" {
		nri += map[string]string{fromPlugin: ", our plugin is registered", fromConfig: ", by its file"}[c.NRIFrom]
	}
	if r.OS == "windows" {
		nri = "never: containerd calls no plugin on Windows"
	}
	row("NRI", nri)
	for _, h := range c.Handlers {
		row("handler "+h.Name, h.String())
	}
	shim := "not installed"
	switch {
	case r.Shim.Error != "":
		shim = r.Shim.Path + ": " + r.Shim.Error
	case r.Shim.Installed:
		shim = r.Shim.Path + ", version " + r.Shim.Version
	}
	row("our shim", shim)
	return table.Print(w, to)
}

// injectionWords says who gives containers their GPUs.
func injectionWords(injection string) string {
	if injection == string(config.InjectByKubelet) {
		return injection + ": the advertiser's answer to the kubelet"
	}
	return injection + ": the NRI plugin or the runtime shim"
}

func (h handlerCapability) String() string {
	switch {
	case h.Routed && h.Loaded:
		return "through our shim"
	case h.Routed:
		return "through our shim by the file, and not known to be loaded so"
	case h.Loaded:
		return "through our shim until containerd is restarted"
	}
	return "not through our shim"
}
