package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/internal/cli"
	"directx-nri/internal/containerdconfig"
)

// exitUnknown is the exit status if something could not be found out.
const exitUnknown = 2

type statusOptions struct {
	nodeFacts
	output string
}

func newStatusCommand(goos string) *cobra.Command {
	o := statusOptions{nodeFacts: nodeFacts{target: target{os: goos}}}
	command := &cobra.Command{
		Use:   "status",
		Short: "Show which runtime handlers use the shim",
		Long: `Shows containerd's runtime handlers, in its configuration file and as loaded.

Exit status: 0 if the handlers that use the shim work, 1 if not or if there is none,
2 if that is unknown.`,
		Example: `  dxctl runtime status -o json`,
		RunE:    func(c *cobra.Command, _ []string) error { return o.run(c.Context(), c.OutOrStdout()) },
	}
	flags := command.Flags()
	o.addFlags(flags)
	flags.StringVarP(&o.output, "output", "o", outputTable, "output format: table or json")
	return command
}

// statusReport is the output. The names of its fields are stable.
type statusReport struct {
	Config   string          `json:"config"`
	Version  int             `json:"version"`
	NRI      bool            `json:"nri"`
	Imports  []string        `json:"imports,omitempty"`
	Handlers []handlerReport `json:"handlers"`
	// Problems are the reasons for a status other than 0.
	Problems []string `json:"problems,omitempty"`
}

// handlerReport is a runtime handler.
type handlerReport struct {
	containerdconfig.Handler `yaml:",inline"`
	// Eligible reports whether its containers can have GPUs.
	Eligible bool `json:"eligible" yaml:"eligible"`
	// Routed reports whether it uses the shim by the configuration file, and
	// Annotations whether the shim gets our annotations.
	Routed      bool `json:"routed" yaml:"routed"`
	Annotations bool `json:"annotations" yaml:"annotations"`
	// Loaded reports whether it uses the shim in the running containerd.
	Loaded bool `json:"loaded" yaml:"loaded"`
}

func (o *statusOptions) run(ctx context.Context, stdout io.Writer) error {
	if err := errors.Join(checkChoice("output", o.output, outputTable, outputJSON), o.check()); err != nil {
		return err
	}
	facts := o.gatherRuntime(ctx)
	if err := facts.Containerd.FileErr; err != nil {
		return cli.WithStatus(exitUnknown, err)
	}
	r := reportStatus(facts)
	if err := r.print(stdout, o.output); err != nil {
		return err
	}
	switch {
	case facts.Containerd.Err != nil:
		return cli.WithStatus(exitUnknown, fmt.Errorf("containerd's runtime handlers are unknown: %w; is --cri-socket %s correct?", facts.Containerd.Err, o.criSocket))
	case len(r.Problems) > 0:
		return errors.New(r.Problems[0])
	}
	return nil
}

func reportStatus(f doctor.Facts) statusReport {
	file := f.Containerd.File
	r := statusReport{Config: f.Containerd.ConfigPath, Version: file.Version, NRI: file.NRI, Imports: file.Imports, Handlers: reportHandlers(f)}
	for _, finding := range doctor.RuntimeFindings(f) {
		r.Problems = append(r.Problems, finding.Problem+": "+finding.Fix)
	}
	return r
}

// reportHandlers returns the handlers of the file, and those that only the running
// containerd has.
func reportHandlers(f doctor.Facts) []handlerReport {
	list := []handlerReport{}
	for _, h := range f.Containerd.File.Handlers {
		list = append(list, handlerReport{Handler: h, Eligible: h.Eligible(f.OS), Routed: h.Ours(), Annotations: h.PassesAnnotations()})
	}
	for _, h := range f.Containerd.Loaded {
		if !h.Ours() {
			continue
		}
		i := slices.IndexFunc(list, func(r handlerReport) bool { return r.Name == h.Name })
		if i < 0 {
			list, i = append(list, handlerReport{Handler: h, Eligible: h.Eligible(f.OS)}), len(list)
		}
		list[i].Loaded = !list[i].Routed || h.RuntimePath == list[i].RuntimePath
	}
	return list
}

func (r statusReport) print(w io.Writer, output string) error {
	if output == outputJSON {
		return printAs(w, outputJSON, r)
	}
	fmt.Fprintf(w, "%s: version %d, NRI %s\n", r.Config, r.Version, onOff(r.NRI))
	table := newTable(w)
	table.row("HANDLER", "GPUS", "SHIM", "ANNOTATIONS", "LOADED", "RUNTIME PATH")
	for _, h := range r.Handlers {
		table.row(h.Name, yesNo(h.Eligible), yesNo(h.Routed), yesNo(h.Annotations), yesNo(h.Loaded), h.RuntimePath)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, problem := range r.Problems {
		fmt.Fprintf(w, "problem: %s\n", doctor.Printable(problem))
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
