package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"

	"directx-nri/cmd/dxctl/preview"
	"directx-nri/cmd/dxctl/specdiff"
	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/cli"
	"directx-nri/internal/paths"
	"directx-nri/nri/decision"
	"directx-nri/ocispec"
)

// Forms of the output, beside JSON.
const (
	specDiff = "diff"
	specSpec = "spec"
)

type specOptions struct {
	gpuSource
	selection
	nodeFiles
	token    string
	presents bool // --token is given, if only as "".
	stateDir string
	id       string
	output   string
}

func newSpecCommand() *cobra.Command {
	var o specOptions
	command := &cobra.Command{
		Use:   "spec CONFIG.json|-",
		Short: "Show what the runtime shim would change in a container's spec",
		Long: `Shows what the runtime shim would do to an OCI runtime spec, a file or standard
input, and does nothing: no allocation is bound, and no file is written.

Without a selection or a token it decides by what the spec says itself, as the
shim does: the allocation that a pod's container presents, and what a container
outside of pods asks for. With a selection the container is taken for one outside
of pods that asks for it. With --token it is taken to present that allocation; a
spec that is of no pod is taken for that of the container which holds it.

The node's configuration counts as it does for the shim: runtimeFiles, extraMounts,
assignmentMode and visibilityHints. What assignmentMode auto stands for, this
machine's Windows says.

  -o diff   what is changed, both specs in the same indentation, keys in order
  -o spec   the spec that the container would start with, as the shim writes it
  -o json   the decision: the GPUs, the edits, and files that are left out

The diff and the decision have no tokens in them. A spec has those that it came
with.

Exit status: 0 when the container would start, 1 when the shim would refuse it,
with the reason, or when it cannot be told.`,
		Example: `  dxctl spec /run/containerd/io.containerd.runtime.v2.task/k8s.io/ID/config.json
  ctr container info --spec ID | dxctl spec - --index 0
  dxctl spec config.json --all -o json

  # another node's GPUs
  dxctl spec config.json --all --inventory node7.yaml --assume-files`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usage("name one spec, a file, or - for standard input")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			o.presents = c.Flags().Changed("token")
			return o.run(c.Context(), args[0], c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := command.Flags()
	flags.SortFlags = false
	o.selection.addFlags(flags)
	flags.StringVar(&o.token, "token", "", "`TOKEN` of an allocation")
	flags.StringVar(&o.id, "id", "preview", "the container's `ID`")
	flags.StringVarP(&o.output, "output", "o", specDiff, "form of the output: diff, spec or json")
	o.gpuSource.addFlags(flags)
	o.nodeFiles.addFlags(flags)
	flags.StringVar(&o.stateDir, "state-dir", "", "`FOLDER` of the allocation records (default: as in config.yaml)")
	completeValues(command, "output", specDiff, specSpec, outputJSON)
	return command
}

func (o *specOptions) run(ctx context.Context, name string, stdin io.Reader, stdout, stderr io.Writer) error {
	question, err := o.question(name, stdin)
	if err != nil {
		return err
	}
	node, err := o.previewed(ctx, stderr)
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
			if err := printAs(stdout, outputJSON, reportDecision(answer)); err != nil {
				return err
			}
		}
		return answer.Refused
	}
	if o.output != outputJSON {
		tellNotes(stderr, answer.Outcome.Notes)
		if answer.Untouched != "" {
			fmt.Fprintf(stderr, "dxctl: nothing is changed: %s\n", answer.Untouched)
		}
	}
	return o.print(stdout, name, question.Spec, answer)
}

// question checks the flags and reads the spec.
func (o *specOptions) question(name string, stdin io.Reader) (preview.Question, error) {
	q := preview.Question{ID: o.id, Request: o.request()}
	switch {
	case o.output != specDiff && o.output != specSpec && o.output != outputJSON:
		return q, cli.Usage("--output %q is none of %s, %s, %s", o.output, specDiff, specSpec, outputJSON)
	case o.presents && !o.empty():
		return q, cli.Usage("--token excludes --all, --index, --luid and --path")
	}
	err := cmp.Or(o.selection.check(), o.nodeFiles.check())
	if err != nil {
		return q, err
	}
	if o.presents {
		if q.Token, err = allocation.ParseToken(o.token); err != nil {
			return q, cli.Usage("--token: the value is %w", allocation.ErrMalformedToken)
		}
	}
	if name == "-" {
		q.Spec, err = io.ReadAll(stdin)
	} else {
		q.Spec, err = os.ReadFile(name)
	}
	if err != nil {
		return q, fmt.Errorf("read the spec: %w", err)
	}
	return q, nil
}

// previewed returns the node that the container is taken to start on.
func (o *specOptions) previewed(ctx context.Context, stderr io.Writer) (preview.Node, error) {
	c, err := o.settings(stderr)
	if err != nil {
		return preview.Node{}, err
	}
	open := func() (discovery.Source, error) { return o.openAs(c, io.Discard) }
	node := preview.Node{
		Source: open, Store: allocation.OpenStore(paths.Allocations(cmp.Or(o.stateDir, c.StateDir))), Files: o.files(),
		Policy: func(os ocispec.OS) decision.Policy { return policyOf(c, os) },
	}
	if o.empty() {
		return node, nil
	}
	// The selection is checked first, in the words of the flags.
	source, err := open()
	if err != nil {
		return preview.Node{}, err
	}
	present, err := source.Devices(ctx)
	if err == nil {
		_, err = o.choose(present)
	}
	if err != nil {
		return preview.Node{}, err
	}
	node.Source = func() (discovery.Source, error) { return discovery.Static(present), nil }
	return node, nil
}

func (o *specOptions) print(stdout io.Writer, name string, before []byte, answer preview.Answer) error {
	switch o.output {
	case outputJSON:
		return printAs(stdout, outputJSON, reportDecision(answer))
	case specSpec:
		_, err := stdout.Write(answer.Spec)
		return err
	}
	text, err := specdiff.Unified(name, name, before, answer.Spec)
	if err != nil {
		return err
	}
	_, err = io.WriteString(stdout, answer.Hide(text))
	return err
}

// decisionReport is what the shim would do. The names of its fields are for
// scripts, and stay; those of edits are the runtime spec's.
type decisionReport struct {
	ID string `json:"id"`
	// Pod is not there for a container outside of pods.
	Pod *podReport `json:"pod,omitempty"`
	OS  string     `json:"os,omitempty"`
	// Decision is "given", "untouched" or "refused".
	Decision string `json:"decision"`
	// Reason is why it is untouched or refused.
	Reason  string                 `json:"reason,omitempty"`
	Devices []decisionDeviceReport `json:"devices,omitempty"`
	Edits   *editsReport           `json:"edits,omitempty"`
	LeftOut []leftOutReport        `json:"leftOut,omitempty"`
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

type editsReport struct {
	RemoveMounts         []string              `json:"removeMounts,omitempty"`
	RemoveWindowsDevices []specs.WindowsDevice `json:"removeWindowsDevices,omitempty"`
	Env                  []string              `json:"env,omitempty"`
	WindowsDevices       []specs.WindowsDevice `json:"windowsDevices,omitempty"`
	LinuxDevices         []specs.LinuxDevice   `json:"linuxDevices,omitempty"`
	Mounts               []specs.Mount         `json:"mounts,omitempty"`
}

// leftOutReport is a file of a driver that the container does without.
type leftOutReport struct {
	Device string `json:"device"`
	Source string `json:"source"`
	Reason string `json:"reason"`
}

// Values of [decisionReport.Decision].
const (
	decisionGiven     = "given"
	decisionUntouched = "untouched"
	decisionRefused   = "refused"
)

func reportDecision(a preview.Answer) decisionReport {
	r := reportContainer(a.Container)
	switch {
	case a.Refused != nil:
		r.Decision, r.Reason = decisionRefused, a.Refused.Error()
	case a.Untouched != "":
		r.Decision, r.Reason = decisionUntouched, a.Untouched
	default:
		r.Decision = decisionGiven
	}
	for _, d := range a.Outcome.Devices {
		r.Devices = append(r.Devices, decisionDeviceReport{d.InstanceID, d.LocationPath, d.Description})
	}
	for _, n := range a.Outcome.Notes {
		r.LeftOut = append(r.LeftOut, leftOutReport{n.Device, n.Source, n.Reason})
	}
	if len(r.Devices) > 0 {
		edits := editsReport(a.Outcome.Edits)
		r.Edits = &edits
	}
	return r
}

func reportContainer(c decision.Container) decisionReport {
	r := decisionReport{ID: c.ID, OS: string(c.OS)}
	if c.Pod != nil {
		r.Pod = &podReport{UID: c.Pod.UID, Namespace: c.Pod.Namespace, Name: c.Pod.Name, Container: c.Name}
	}
	return r
}
