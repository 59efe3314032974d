package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"directx-nri/internal/cli"
	"directx-nri/internal/containerdconfig"
)

// exitUnknown is the exit status when it could not be found out.
const exitUnknown = 2

type statusOptions struct {
	target
	output  string
	timeout time.Duration
}

func newStatusCommand(goos string) *cobra.Command {
	o := statusOptions{target: target{os: goos}}
	command := &cobra.Command{
		Use:   "status",
		Short: "Tell which containers go through our runtime shim",
		Long: `Tells what containerd's configuration file says and what the running containerd
has loaded. Exit status: 0 when at least one runtime handler goes through our
shim, and each that does so in the file does so in the running containerd, with
the shim there; 1 when not, and it is said what; 2 when it could not be found
out.`,
		Example: `  dxctl runtime status
  dxctl runtime status -o json`,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), c.OutOrStdout()) },
	}
	flags := command.Flags()
	o.addFlags(flags)
	flags.StringVarP(&o.output, "output", "o", "table", "form of the output: table or json")
	flags.DurationVar(&o.timeout, "timeout", 5*time.Second, "how long containerd may take to answer")
	return command
}

// report is what status prints.
type report struct {
	Config   string          `json:"config"`
	Version  int             `json:"version"`
	NRI      bool            `json:"nri"`
	Handlers []handlerReport `json:"handlers"`
	// Problems are why the exit status is not 0.
	Problems []string `json:"problems,omitempty"`
}

type handlerReport struct {
	containerdconfig.Handler
	// Eligible tells that its containers can have GPUs.
	Eligible bool `json:"eligible"`
	// Routed tells that the file has its containers go through our shim, and
	// Annotations that our annotations get there.
	Routed      bool `json:"routed"`
	Annotations bool `json:"annotations"`
	// Loaded tells that the running containerd has it so too.
	Loaded bool `json:"loaded"`
}

func (o *statusOptions) run(ctx context.Context, stdout io.Writer) error {
	if o.output != "table" && o.output != "json" {
		return cli.Usage("--output %q is neither table nor json", o.output)
	}
	if err := o.check(); err != nil {
		return err
	}
	text, _, err := readFile(o.config)
	if err != nil {
		return cli.WithStatus(exitUnknown, err)
	}
	node := o.node(ctx)
	f, err := containerdconfig.Read(text, node)
	if err != nil {
		return cli.WithStatus(exitUnknown, locate(o.config, err))
	}
	asked, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	loaded, loadedErr := o.loaded(asked)
	r := newReport(f, loaded, o.os, func(path string) error { _, err := os.Stat(path); return err })
	r.Config = o.config
	if err := o.imports(f, node); err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
	if err := r.print(stdout, o.output); err != nil {
		return err
	}
	switch {
	case loadedErr != nil:
		return cli.WithStatus(exitUnknown, fmt.Errorf("what containerd has loaded is not known: %w; is --cri-socket %s right?", loadedErr, o.criSocket))
	case len(r.Problems) > 0:
		return errors.New(r.Problems[0])
	}
	return nil
}

// newReport tells what file and running containerd say together. stat tells
// whether a shim is there.
func newReport(f containerdconfig.File, loaded []containerdconfig.Handler, os string, stat func(string) error) report {
	r := report{Version: f.Version, NRI: f.NRI, Handlers: []handlerReport{}}
	problem := func(format string, args ...any) { r.Problems = append(r.Problems, fmt.Sprintf(format, args...)) }
	running := map[string]containerdconfig.Handler{}
	for _, h := range loaded {
		running[h.Name] = h
	}
	routed := 0
	for _, h := range f.Handlers {
		line := handlerReport{Handler: h, Eligible: h.Eligible(os), Routed: h.Ours(), Annotations: h.PassesAnnotations()}
		line.Loaded = line.Routed && running[h.Name].RuntimePath == h.RuntimePath
		r.Handlers = append(r.Handlers, line)
		if !line.Routed {
			continue
		}
		routed++
		if err := stat(h.RuntimePath); err != nil {
			problem("handler %s: the shim is not there: %v; install it with 'dxctl runtime install'", h.Name, err)
		}
		if !line.Annotations {
			problem("handler %s does not hand on %s; run 'dxctl runtime configure'", h.Name, containerdconfig.AnnotationPattern)
		}
		if !line.Loaded && loaded != nil {
			problem("handler %s is configured and containerd has not loaded it so: restart containerd", h.Name)
		}
	}
	if routed == 0 {
		problem("no runtime handler goes through our shim; run 'dxctl runtime configure --restart'")
	}
	return r
}

func (r report) print(w io.Writer, form string) error {
	if form == "json" {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	fmt.Fprintf(w, "%s: version %d, NRI %s\n", r.Config, r.Version, onOff(r.NRI))
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "HANDLER\tGPUS\tOUR SHIM\tANNOTATIONS\tLOADED\tRUNTIME PATH")
	for _, h := range r.Handlers {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", h.Name, yesNo(h.Eligible), yesNo(h.Routed), yesNo(h.Annotations), yesNo(h.Loaded), h.RuntimePath)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, problem := range r.Problems {
		fmt.Fprintf(w, "problem: %s\n", problem)
	}
	return nil
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
