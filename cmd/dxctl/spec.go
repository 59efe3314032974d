package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
)

const outputDiff = "diff"

type specOptions struct {
	gpuFlags
	output string
}

// newSpecCommand returns 'dxctl spec'.
func newSpecCommand() *cobra.Command {
	o := specOptions{gpuFlags: gpuFlags{AsShim: true}}
	command := &cobra.Command{
		Use:   "spec BUNDLE | CONFIG.json | -",
		Short: "Show how the runtime shim changes a container's spec",
		Long: `Shows how the runtime shim changes the OCI runtime spec of a bundle directory, a file
or standard input (-): the changes (diff), or the changed spec (json). Fails if the
container would not start.

With --gpus, treats the container as a standalone one that requests these GPUs. The spec of
a pod's container does not have its allocation.`,
		Example: `  # the sample bundle, on a node with other GPUs
  dxctl spec deployments/examples/bundle --gpus 0 \
    --inventory deployments/inventory/windows-g4dn.yaml --assume-files

  ctr container info --spec ID | dxctl spec - --gpus all -o json`,
		Args: cli.Arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(c.Context(), args[0], c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := command.Flags()
	o.AddRequestFlag(command, "GPUs that a standalone container requests")
	cli.AddOutputFlag(command, &o.output, outputDiff, cli.JSON)
	o.AddFlags(flags)
	o.AddFileFlags(flags)
	return command
}

func (o *specOptions) run(ctx context.Context, name string, stdin io.Reader, stdout, stderr io.Writer) error {
	if err := o.CheckFlags(); err != nil {
		return err
	}
	name, spec, err := readSpec(name, stdin)
	if err != nil {
		return err
	}
	p, err := o.preview(ctx, stderr, spec)
	if err != nil {
		return cli.UnknownResult(fmt.Errorf("%s: %w", name, err))
	}
	if p.refused != nil {
		return p.refused
	}
	o.ReportSkipped(stderr, p.missing)
	if p.unchanged != "" {
		fmt.Fprintf(stderr, "dxctl: the spec is not changed: %s\n", p.unchanged)
	}
	if o.output == cli.JSON {
		_, err := stdout.Write(p.spec)
		return err
	}
	text, err := diffJSON(name, spec, p.spec)
	if err != nil {
		return err
	}
	_, err = io.WriteString(stdout, text)
	return err
}

// readSpec reads a file, the config.json of a bundle directory, or standard input for "-".
// It returns the name for messages.
func readSpec(name string, stdin io.Reader) (string, []byte, error) {
	if name == "-" {
		spec, err := io.ReadAll(stdin)
		return "standard input", spec, err
	}
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		name = filepath.Join(name, "config.json")
	}
	spec, err := os.ReadFile(name)
	return name, spec, err
}

// preview is what the runtime shim would do to a container's spec.
type preview struct {
	// unchanged is why the spec is not changed, "" if it is.
	unchanged string
	// refused is why the container would not start, or nil.
	refused error
	missing []gpuedits.SkippedFile
	spec    []byte
}

// preview returns what the shim would do, and changes nothing. It returns an error if that is
// unknown, because the spec is invalid or the node's state cannot be read.
func (o *specOptions) preview(ctx context.Context, stderr io.Writer, text []byte) (p preview, err error) {
	spec, err := ocispec.ParseSpec(text)
	if err != nil {
		return p, err
	}
	container, eligible := decision.ContainerOf(spec.SpecInfo, "preview")
	p = preview{spec: text}
	if !eligible {
		p.unchanged = "a pod sandbox or host process gets no GPU"
		return p, nil
	}
	if o.Request != "" {
		container = asStandalone(container, o.Request)
	}
	if container.Interlock && container.Pod != nil {
		return p, errors.New("the container's allocation is not in its spec: containerd has it, and 'dxctl allocations' lists it")
	}
	gpuRequest, ok := decision.ReadRequest(container)
	if !ok {
		p.unchanged = "the container requests no GPU"
		return p, nil
	}
	source, resolved, err := o.Open(stderr, container.OS)
	if err != nil {
		return p, err
	}
	store := allocation.OpenStore(paths.Allocations(o.StateDir))
	decider := decision.Decider{Source: source, Policy: resolved, Store: store, Files: o.Files()}
	outcome, err := decider.Decide(ctx, gpuRequest)
	if err != nil {
		return p.refuse(container, err)
	}
	if outcome.UnchangedReason != "" {
		p.unchanged = outcome.UnchangedReason
		return p, nil
	}
	edited, changed, err := spec.Apply(outcome.Edits)
	if err != nil {
		return p.refuse(container, err)
	}
	if !changed {
		p.unchanged = "it already has everything"
	}
	p.spec = edited
	p.missing = outcome.Skipped
	return p, nil
}

// refuse returns the preview of a container that err stops. If dxctl lacks a permission, it is unknown
// what the shim would do.
func (p preview) refuse(container decision.Container, err error) (preview, error) {
	if errors.Is(err, fs.ErrPermission) {
		return p, err
	}
	p.refused = container.RefusalError(err)
	return p, nil
}

// asStandalone returns c as a standalone container that requests GPUs. It sets the annotation, which takes
// precedence over the environment variable.
func asStandalone(c decision.Container, request string) decision.Container {
	c.Pod, c.Name = nil, ""
	annotations := map[string]string{}
	maps.Copy(annotations, c.Annotations)
	annotations[decision.VisibleAnnotation] = request
	c.Annotations = annotations
	return c
}

// diffJSON returns a unified diff of the indented forms of two JSON documents, "" if they are the
// same.
func diffJSON(name string, before, after []byte) (string, error) {
	old, oldErr := indentJSON(before)
	edited, editedErr := indentJSON(after)
	return string(diff.Diff(name, old, name, edited)), errors.Join(oldErr, editedErr)
}

// indentJSON returns the JSON in data with indentation and sorted keys. Numbers are preserved as
// written, and the ampersands of instance IDs are not escaped.
func indentJSON(data []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return text.Bytes(), err
}
