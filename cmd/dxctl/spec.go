package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/ocispec"
)

// outputEdits is the output format with the changes.
const outputEdits = "edits"

type specOptions struct {
	gpuSelection
	output cli.Output
}

// newSpecCommand returns 'dxctl spec'.
func newSpecCommand() *cobra.Command {
	o := specOptions{gpuSelection: gpuSelection{AsShim: true}}
	command := &cobra.Command{
		Use:   "spec BUNDLE | CONFIG.json | -",
		Short: "Show how the runtime shim changes a container's spec",
		Long: `Shows how the runtime shim changes the OCI runtime spec of a bundle directory, a file
or standard input (-): the changes (edits), or the changed spec (json). Fails if the
container would not start.

With --gpus, treats the container as a standalone one that requests these GPUs. The spec of
a pod's container does not have its allocation.`,
		Example: `  # the sample bundle, on a node with other GPUs
  dxctl spec deployments/examples/bundle --gpus 0 \
    --inventory deployments/inventory/windows-g4dn.yaml --assume-files

  ctr container info --spec ID | dxctl spec - --gpus all -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			stdin, err := readStdin(c, args[0])
			if err != nil {
				return err
			}
			return o.run(c.Context(), args[0], stdin, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := command.Flags()
	o.AddRequestFlag(flags, "GPUs that a standalone container requests")
	cli.AddOutputFlags(command, &o.output, outputEdits, cli.JSON)
	o.AddFlags(command)
	o.AddFileFlags(command)
	return command
}

func (o *specOptions) run(ctx context.Context, name string, stdin []byte, stdout, stderr io.Writer) error {
	name, text, err := readSpec(name, stdin)
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return cli.UnknownResult(fmt.Errorf("%s is empty, want an OCI runtime spec", name))
	}
	spec, err := ocispec.ParseSpec(text)
	if err != nil {
		return cli.UnknownResult(fmt.Errorf("%s: %w", name, err))
	}
	outcome, err := o.decide(ctx, stderr, spec.SpecInfo)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if outcome.UnchangedReason == "" {
		changed := false
		if text, changed, err = spec.Apply(outcome.Edits); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if !changed {
			outcome.UnchangedReason = "it already has everything"
		}
	}
	o.ReportSkipped(stderr, outcome.Skipped)
	if outcome.UnchangedReason != "" {
		fmt.Fprintf(stderr, "dxctl: the spec is not changed: %s\n", outcome.UnchangedReason)
	}
	switch {
	case o.output.Format == cli.JSON:
		_, err = stdout.Write(text)
	case outcome.UnchangedReason == "":
		err = cli.PrintDocument(stdout, cli.YAML, outcome.Edits)
	}
	return err
}

// readSpec reads a file or the config.json of a bundle directory, unless it has standard input. It returns the
// name for messages.
func readSpec(name string, stdin []byte) (string, []byte, error) {
	if stdin != nil {
		return "standard input", stdin, nil
	}
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		name = filepath.Join(name, "config.json")
	}
	spec, err := os.ReadFile(name)
	return name, spec, err
}

// decide returns what the shim would decide. Its error is the shim's refusal, or has the status of an unknown
// result, because the node's state cannot be read.
func (o *specOptions) decide(ctx context.Context, stderr io.Writer, info ocispec.SpecInfo) (*decision.Outcome, error) {
	container, ok := decision.ContainerOf(info, "preview")
	if !ok {
		return &decision.Outcome{UnchangedReason: "a pod sandbox or host process gets no GPU"}, nil
	}
	if o.Request != "" { // The annotation takes precedence over the environment variable.
		container.Pod = nil
		container.Annotations = maps.Collect(maps.All(container.Annotations))
		container.Annotations[decision.VisibleAnnotation] = o.Request
	}
	if container.Interlock && container.Pod != nil {
		return nil, cli.UnknownResult(errors.New("the container's allocation is not in its spec: containerd has it, and 'dxctl allocations' lists it"))
	}
	request, ok := decision.ReadRequest(container)
	if !ok {
		return &decision.Outcome{UnchangedReason: "the container requests no GPU"}, nil
	}
	source, resolved, err := o.Open(stderr, container.OS)
	if err != nil {
		return nil, cli.UnknownResult(err)
	}
	decider := decision.Decider{
		Source: source, Policy: resolved, Store: allocation.OpenStore(paths.Allocations(o.StateDir)), Files: o.Files(),
	}
	outcome, err := decider.Decide(ctx, request)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, cli.UnknownResult(err) // The shim may have it.
	case err != nil:
		_, err = container.Refuse(err)
		return nil, err
	}
	return outcome, nil
}
