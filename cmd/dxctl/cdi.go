// Package cdi has the commands that write and remove the node's CDI specification. With it, Docker,
// Podman, nerdctl and containerd's CRI plugin make the edits of Linux containers, without the NRI
// plugin and the runtime shim.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/directx-nri/directx-nri/ocispec"
	"tags.cncf.io/container-device-interface/pkg/parser"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
)

// header is the first line of the files that dxctl writes.
const header = "# Written by 'dxctl cdi generate'.\n"

// errForeign is the error of a file that another program wrote, which is not replaced or removed.
var errForeign = errors.New("the file was not written by dxctl: remove it, or use another name")

var errNoUsableGPU = errors.New("a specification needs a GPU")

type cdiOptions struct {
	gpuFlags
	file  string
	watch bool
}

// newCDICommand returns 'dxctl cdi'.
func newCDICommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "cdi",
		Short: "Give the GPUs to Docker, Podman and others by CDI",
		Long: `Writes a specification of the Container Device Interface, by which Docker 25, Podman 4,
nerdctl 2 and containerd give GPUs to Linux containers, without a daemon or the shim.`,
	}
	command.AddCommand(newGenerateCommand(), newRemoveCommand())
	return command
}

func newGenerateCommand() *cobra.Command {
	o := cdiOptions{gpuFlags: gpuFlags{WithUUIDs: true}}
	command := &cobra.Command{
		Use:   "generate",
		Short: "Print or write the CDI specification of the GPUs",
		Long: `Prints the specification, or writes it to a file. Each GPU is a device by its index, and by
a name that does not change at a restart. The device all is all GPUs.

A specification cannot append to an environment variable: its LD_LIBRARY_PATH replaces the
image's. If a container has several GPUs, only the hints of the last one are set: use
gpu=all instead.`,
		Example: `  dxctl cdi generate --file /var/run/cdi/directx-nri.yaml
  docker run --rm --device directx.microsoft.com/gpu=all IMAGE`,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	flags := command.Flags()
	flags.StringVar(&o.file, "file", "", "`FILE` to write; a file that dxctl did not write is not replaced")
	flags.BoolVar(&o.watch, "watch", false, "write it again after changes, and remove it on a signal or if no GPU is usable")
	o.AddFlags(flags)
	o.AddFileFlags(flags)
	return command
}

func newRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "remove FILE",
		Short:   "Remove the CDI specification",
		Long:    "Removes the file that 'dxctl cdi generate' wrote. Running containers keep their GPUs.",
		Example: "  dxctl cdi remove /var/run/cdi/directx-nri.yaml",
		Args:    cli.Arguments(1, 1),
		RunE:    func(c *cobra.Command, args []string) error { return remove(args[0], c.OutOrStdout()) },
	}
}

func (o *cdiOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	switch {
	case o.watch && o.file == "":
		return cli.UsageError("--watch requires --file")
	case o.file != "" && filepath.Ext(o.file) != ".yaml":
		return cli.UsageError("--file %s: its name must end with .yaml, because dxctl writes YAML", o.file)
	}
	if err := o.CheckFlags(); err != nil {
		return err
	}
	update := func() error { return o.update(ctx, stdout, stderr) }
	if !o.watch {
		return update()
	}
	if err := watch(ctx, update, stderr); err != nil {
		return err
	}
	return remove(o.file, stdout)
}

// watch calls update as [repeat] does. It prints an error once, because a later update may
// succeed. A foreign file ends the watch.
func watch(ctx context.Context, update func() error, stderr io.Writer) error {
	var last errlog.LastError
	return repeat(ctx, func() error {
		err := update()
		if errors.Is(err, errForeign) {
			return err
		}
		if last.Changed(err) && err != nil {
			fmt.Fprintf(stderr, "dxctl: %s; trying again\n", errlog.ErrorLine(err))
		}
		return nil
	})
}

// update prints the specification of the GPUs, or writes it to the file if the file differs. It prints
// notes only with a new specification, because a watch updates often.
func (o *cdiOptions) update(ctx context.Context, stdout, stderr io.Writer) error {
	var notes bytes.Buffer
	data, count, err := o.generate(ctx, &notes)
	noGPU := errors.Is(err, errNoUsableGPU) || errors.Is(err, node.ErrNoSource)
	if o.watch && noGPU && durable.Exists(o.file) {
		err = errors.Join(err, remove(o.file, stdout))
	}
	if err != nil {
		return err
	}
	changed, err := o.write(data, count, stdout)
	if changed {
		_, _ = notes.WriteTo(stderr)
	}
	return err
}

// generate returns the specification of the usable GPUs, and their number.
func (o *cdiOptions) generate(ctx context.Context, stderr io.Writer) (data []byte, count int, err error) {
	present, p, err := o.Devices(ctx, stderr, "linux")
	if err != nil {
		return nil, 0, err
	}
	all, err := decision.Select("all", present)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errNoUsableGPU, err)
	}
	var devices []cdiDevice
	for i, d := range present {
		if _, usable := discovery.Find(all, d.InstanceID); !usable {
			continue
		}
		edits, _, err := gpuedits.Build("linux", present[i:i+1], nil, o.Files(), p)
		if err != nil {
			return nil, 0, err
		}
		devices = append(devices, cdiDevice{strconv.Itoa(i), edits}, cdiDevice{cdiName(d.InstanceID), edits})
	}
	edits, notes, err := gpuedits.Build("linux", all, nil, o.Files(), p)
	if err != nil {
		return nil, 0, err
	}
	o.ReportSkipped(stderr, notes)
	spec, err := newCDISpec(append(devices, cdiDevice{"all", edits}))
	if err != nil {
		return nil, 0, err
	}
	text := bytes.NewBufferString(header)
	err = cli.PrintDocument(text, cli.YAML, spec)
	return text.Bytes(), len(all), err
}

// write prints the specification of count GPUs, or writes it to the file if the file differs. It reports
// whether it did either.
func (o *cdiOptions) write(data []byte, count int, stdout io.Writer) (changed bool, err error) {
	if o.file == "" {
		_, err := stdout.Write(data)
		return true, err
	}
	before, err := read(o.file)
	if err != nil || bytes.Equal(before, data) {
		return false, err
	}
	// #nosec G301 -- as the runtimes make it
	if err := os.MkdirAll(filepath.Dir(o.file), 0o755); err != nil {
		return false, err
	}
	if err := durable.Replace(o.file, data, 0o644); err != nil {
		return false, err
	}
	fmt.Fprintf(stdout, "wrote %s: %d GPUs\n", o.file, count)
	return true, nil
}

// read returns the content of a file that dxctl wrote, nil if it does not exist. The error of a
// foreign file is [errForeign].
func read(path string) ([]byte, error) {
	data, err := durable.Read(path, 1<<20)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err == nil && !bytes.HasPrefix(data, []byte(header)):
		err = fmt.Errorf("%s: %w", path, errForeign)
	}
	return data, err
}

func remove(path string, stdout io.Writer) error {
	data, err := read(path)
	if err != nil {
		return err
	}
	if data == nil {
		fmt.Fprintf(stdout, "%s does not exist\n", path)
		return nil
	}
	if err := durable.Remove(path); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "removed %s\n", path)
	return nil
}

// cdiKind is the CDI kind of the GPUs: containers request directx.microsoft.com/gpu=NAME.
const cdiKind = "directx.microsoft.com/gpu"

type cdiDevice struct {
	name  string
	edits ocispec.Edits
}

// newCDISpec returns the specification of devices, in the oldest version that can express them:
// Podman 4 reads no version after 0.5.0. An error means that a name is not valid or not unique, or
// that CDI has no counterpart for an edit.
// https://github.com/cncf-tags/container-device-interface/blob/v1.1.1/SPEC.md
func newCDISpec(devices []cdiDevice) (*cdispec.Spec, error) {
	spec := &cdispec.Spec{Kind: cdiKind}
	for i, d := range devices {
		if err := parser.ValidateDeviceName(d.name); err != nil {
			return nil, fmt.Errorf("CDI device %q: %w", d.name, err)
		}
		if slices.ContainsFunc(devices[:i], func(other cdiDevice) bool { return other.name == d.name }) {
			return nil, fmt.Errorf("two GPUs have the CDI name %q: change an instanceID in the inventory", d.name)
		}
		if len(d.edits.RemoveMounts)+len(d.edits.RemoveWindowsDevices)+len(d.edits.WindowsDevices) > 0 {
			return nil, fmt.Errorf("CDI device %q: %w", d.name, errors.ErrUnsupported)
		}
		spec.Devices = append(spec.Devices, cdispec.Device{Name: d.name, ContainerEdits: containerEdits(d.edits)})
	}
	version, err := cdispec.MinimumRequiredVersion(spec)
	if err != nil {
		return nil, fmt.Errorf("version of the CDI specification: %w", err)
	}
	spec.Version = version
	return spec, nil
}

func containerEdits(edits ocispec.Edits) cdispec.ContainerEdits {
	converted := cdispec.ContainerEdits{Env: edits.Env}
	for _, d := range edits.LinuxDevices {
		// The runtime reads the device numbers: they change when the driver is loaded again.
		converted.DeviceNodes = append(converted.DeviceNodes, &cdispec.DeviceNode{
			Path: d.Path, HostPath: d.HostPath, Permissions: ocispec.DeviceAccess(d.LinuxDevice),
			FileMode: d.FileMode, UID: d.UID, GID: d.GID,
		})
	}
	for _, m := range edits.Mounts {
		converted.Mounts = append(converted.Mounts,
			&cdispec.Mount{HostPath: m.Source, ContainerPath: m.Destination, Options: m.Options, Type: m.Type})
	}
	return converted
}

// cdiName returns text as the name of a CDI device: characters that are not allowed become hyphens.
func cdiName(text string) string {
	name := strings.Map(func(r rune) rune {
		if parser.IsAlphaNumeric(r) || strings.ContainsRune("_-.:", r) {
			return r
		}
		return '-'
	}, text)
	return strings.Trim(name, "_-.:")
}
