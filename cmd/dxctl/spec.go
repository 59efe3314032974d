package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"

	"directx-nri/cmd/dxctl/preview"
	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/cli"
	"directx-nri/internal/paths"
	"directx-nri/nri/decision"
	"directx-nri/ocispec"
)

const (
	outputDiff = "diff"
	outputSpec = "spec"
)

type specOptions struct {
	nodeConfig
	selection
	nodeFiles
	token    string
	hasToken bool
	id       string
	output   string
}

func newSpecCommand() *cobra.Command {
	var o specOptions
	command := &cobra.Command{
		Use:   "spec CONFIG.json|-",
		Short: "Show how the runtime shim changes a container's spec",
		Long: `Shows how the runtime shim changes an OCI runtime spec: the changes (diff), the
changed spec, or the decision with GPUs, edits and missing files (json). Nothing is
written, and no allocation is bound.

With --all, --index, --luid or --path, the container is a standalone one that
requests these GPUs; with --token, the one that holds that allocation.

Exit status: 0 if the container would start, 1 if not or if that is unknown.`,
		Example: `  # the sample bundle, on a node with other GPUs
  dxctl spec deployments/examples/bundle/config.json --index 0 \
    --inventory deployments/inventory/windows-g4dn.yaml --assume-files

  dxctl spec /run/containerd/io.containerd.runtime.v2.task/k8s.io/ID/config.json
  ctr container info --spec ID | dxctl spec - --all -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			o.hasToken = c.Flags().Changed("token")
			return o.run(c.Context(), args[0], c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := command.Flags()
	flags.SortFlags = false
	o.selection.addFlags(flags)
	flags.StringVar(&o.token, "token", "", "allocation `TOKEN`")
	flags.StringVar(&o.id, "id", "preview", "the container's `ID`")
	flags.StringVarP(&o.output, "output", "o", outputDiff, "output format: diff, spec or json")
	o.nodeConfig.addFlags(flags)
	o.nodeFiles.addFlags(flags)
	return command
}

func (o *specOptions) run(ctx context.Context, name string, stdin io.Reader, stdout, stderr io.Writer) error {
	question, err := o.question(name, stdin)
	if err != nil {
		return err
	}
	node, err := o.node(ctx, stderr)
	if err != nil {
		return err
	}
	if name == "-" {
		name = "standard input"
	}
	answer, err := preview.Ask(ctx, question, node)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if answer.Refused != nil {
		if o.output == outputJSON {
			err = printAs(stdout, outputJSON, reportDecision(answer))
		}
		return errors.Join(err, answer.Refused)
	}
	if o.output != outputJSON {
		reportNotes(stderr, answer.Outcome.Notes)
		if answer.Unchanged != "" {
			fmt.Fprintf(stderr, "dxctl: the spec is not changed: %s\n", answer.Unchanged)
		}
	}
	return o.print(stdout, name, question.Spec, answer)
}

// question checks the flags and reads the spec.
func (o *specOptions) question(name string, stdin io.Reader) (preview.Question, error) {
	q := preview.Question{ID: o.id, Request: o.request()}
	err := errors.Join(checkChoice("output", o.output, outputDiff, outputSpec, outputJSON), o.selection.check(), o.nodeFiles.check())
	switch {
	case err != nil:
		return q, err
	case o.hasToken && !o.empty():
		return q, cli.Usage("--token excludes --all, --index, --luid and --path")
	case o.hasToken:
		if q.Token, err = allocation.ParseToken(o.token); err != nil {
			return q, cli.Usage("--token: %w", allocation.ErrMalformedToken)
		}
	}
	if name == "-" {
		q.Spec, err = io.ReadAll(stdin)
	} else {
		q.Spec, err = os.ReadFile(name)
	}
	return q, err
}

// node returns the node on which the container would start.
func (o *specOptions) node(ctx context.Context, stderr io.Writer) (preview.Node, error) {
	node := preview.Node{Store: allocation.OpenStore(paths.Allocations(o.stateDir)), Files: o.files()}
	p, _, err := o.read(stderr)
	if err != nil {
		return node, err
	}
	node.Policy = func(os ocispec.OS) decision.Policy { return decisionPolicy(p, os) }
	node.Source = func() (discovery.Source, error) {
		source, _, err := o.open(io.Discard)
		return source, err
	}
	if o.empty() {
		return node, nil
	}
	// An invalid selection is an error about the flags.
	source, err := node.Source()
	if err != nil {
		return node, err
	}
	present, err := source.Devices(ctx)
	if err == nil {
		_, err = o.choose(present)
	}
	node.Source = func() (discovery.Source, error) { return discovery.Static(present), nil }
	return node, err
}

func (o *specOptions) print(stdout io.Writer, name string, before []byte, answer preview.Answer) error {
	switch o.output {
	case outputJSON:
		return printAs(stdout, outputJSON, reportDecision(answer))
	case outputSpec:
		_, err := stdout.Write(answer.Spec)
		return err
	}
	text, err := jsonDiff(name, name, before, answer.Spec)
	if err != nil {
		return err
	}
	_, err = io.WriteString(stdout, answer.Redact(text))
	return err
}

// decisionReport is the decision about a container. The names of its fields are
// stable; those of edits are the runtime spec's.
type decisionReport struct {
	ID string `json:"id"`
	// Pod is nil for a standalone container.
	Pod *podReport `json:"pod,omitempty"`
	OS  string     `json:"os,omitempty"`
	// Decision is "given", "untouched" or "refused", and Reason is why.
	Decision string                 `json:"decision"`
	Reason   string                 `json:"reason,omitempty"`
	Devices  []decisionDeviceReport `json:"devices,omitempty"`
	Edits    *editsReport           `json:"edits,omitempty"`
	// LeftOut are driver files that do not exist.
	LeftOut []leftOutReport `json:"leftOut,omitempty"`
}

type podReport struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Container string `json:"container"`
}

type decisionDeviceReport struct {
	InstanceID   string `json:"instanceID"`
	LocationPath string `json:"locationPath,omitempty"`
	Description  string `json:"description"`
}

// editsReport are the edits; those of Remove are the interlock.
type editsReport struct {
	RemoveMounts         []string              `json:"removeMounts,omitempty"`
	RemoveWindowsDevices []specs.WindowsDevice `json:"removeWindowsDevices,omitempty"`
	Env                  []string              `json:"env,omitempty"`
	WindowsDevices       []specs.WindowsDevice `json:"windowsDevices,omitempty"`
	LinuxDevices         []specs.LinuxDevice   `json:"linuxDevices,omitempty"`
	Mounts               []specs.Mount         `json:"mounts,omitempty"`
}

type leftOutReport struct {
	Device string `json:"device"`
	Source string `json:"source"`
	Reason string `json:"reason"`
}

func reportDecision(a preview.Answer) decisionReport {
	c := a.Container
	r := decisionReport{ID: c.ID, OS: string(c.OS), Decision: "given"}
	if c.Pod != nil {
		r.Pod = &podReport{UID: c.Pod.UID, Namespace: c.Pod.Namespace, Name: c.Pod.Name, Container: c.Name}
	}
	switch {
	case a.Refused != nil:
		r.Decision, r.Reason = "refused", a.Refused.Error()
	case a.Unchanged != "":
		r.Decision, r.Reason = "untouched", a.Unchanged
	}
	for _, d := range a.Outcome.Devices {
		r.Devices = append(r.Devices, decisionDeviceReport{d.InstanceID, d.LocationPath, d.Description})
	}
	for _, n := range a.Outcome.Notes {
		r.LeftOut = append(r.LeftOut, leftOutReport{n.Device, n.Source, n.Reason})
	}
	if e := a.Outcome.Edits; len(r.Devices) > 0 {
		r.Edits = &editsReport{e.RemoveMounts, e.RemoveWindowsDevices, e.Env, e.WindowsDevices, e.LinuxDevices, e.Mounts}
	}
	return r
}
