package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
)

const (
	// cdiKind is the CDI kind of the GPUs: containers request directx.microsoft.com/gpu=NAME.
	cdiKind = "directx.microsoft.com/gpu"
	// cdiVersion is the oldest version of CDI that has all that we need. Podman 4 reads no later one.
	// https://github.com/cncf-tags/container-device-interface/blob/v1.1.1/SPEC.md
	cdiVersion = "0.5.0"
)

// newCDICommand returns 'dxctl cdi'.
func newCDICommand() *cobra.Command {
	var o gpuSelection
	var file string
	generate := &cobra.Command{
		Use:   "generate",
		Short: "Print or write the CDI specification of the GPUs",
		Long: `Prints the specification, or writes it to a file. Each GPU is a device by its index, and by
a name that does not change at a restart. The device all is all GPUs.

The environment variables of a specification replace those of the image and of 'docker run -e'.
So it has only those without which the driver does not work, such as LD_LIBRARY_PATH, and none
that select a GPU.`,
		Example: `  dxctl cdi generate --file /var/run/cdi/directx-nri.yaml
  docker run --rm --device directx.microsoft.com/gpu=all IMAGE`,
		RunE: func(c *cobra.Command, _ []string) error {
			return generateCDI(c.Context(), &o, file, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := generate.Flags()
	flags.StringVar(&file, "file", "", "`FILE` to write, with the extension .yaml")
	o.AddFlags(generate)
	o.AddFileFlags(generate)
	command := &cobra.Command{
		Use:   "cdi",
		Short: "Give the GPUs to Docker, Podman and others by CDI",
		Long: `Writes a specification of the Container Device Interface, by which Docker 25, Podman 4.3,
nerdctl 2.1 and containerd give GPUs to Linux containers, without a daemon or the shim.`,
	}
	command.AddCommand(generate)
	return command
}

// generateCDI prints the specification, or writes it to a file that differs.
func generateCDI(ctx context.Context, o *gpuSelection, file string, stdout, stderr io.Writer) error {
	if file != "" && filepath.Ext(file) != ".yaml" {
		return cli.UsageError("--file %s: runtimes ignore it, because its name does not end with .yaml", file)
	}
	spec, skipped, err := cdiSpec(ctx, o, stderr)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := cli.PrintDocument(&text, cli.YAML, spec); err != nil {
		return err
	}
	if old, err := os.ReadFile(file); err == nil && bytes.Equal(old, text.Bytes()) {
		return nil // Nothing is printed, because the service does this often.
	}
	o.ReportSkipped(stderr, skipped)
	if file == "" {
		_, err := stdout.Write(text.Bytes())
		return err
	}
	if err := durable.MakeReadable(filepath.Dir(file)); err != nil {
		return err
	}
	if err := durable.Replace(file, text.Bytes(), 0o644); err != nil {
		return err
	}
	var names []string
	for _, d := range spec.Devices {
		names = append(names, d.Name)
	}
	_, err = fmt.Fprintf(stderr, "wrote %s with the devices %s\n", file, strings.Join(names, ", "))
	return err
}

// cdiSpec returns the specification of the usable GPUs, and the driver files that it does not have.
func cdiSpec(ctx context.Context, o *gpuSelection, stderr io.Writer) (*cdispec.Spec, []string, error) {
	present, p, err := o.Devices(ctx, stderr, "linux")
	if err != nil {
		return nil, nil, err
	}
	usable, err := decision.Select("all", present)
	if err != nil {
		return nil, nil, err
	}
	type request struct {
		name    string
		devices []discovery.Device
	}
	var requests []request
	for i, d := range present {
		if d.CheckUsable() == nil {
			requests = append(requests, request{strconv.Itoa(i), present[i : i+1]}, request{cdiName(d.InstanceID), present[i : i+1]})
		}
	}
	requests = append(requests, request{"all", usable})

	spec := &cdispec.Spec{Version: cdiVersion, Kind: cdiKind}
	var skipped []string
	for _, r := range requests {
		isTaken := slices.ContainsFunc(spec.Devices, func(d cdispec.Device) bool { return d.Name == r.name })
		if isTaken || r.name == "" {
			return nil, nil, fmt.Errorf("the CDI name %q is empty or not unique: change an instanceID in the inventory", r.name)
		}
		var edits ocispec.Edits
		edits, skipped, err = gpuedits.Build("linux", r.devices, nil, o.Files(), p)
		if err != nil {
			return nil, nil, err
		}
		spec.Devices = append(spec.Devices, cdispec.Device{Name: r.name, ContainerEdits: cdiEdits(edits)})
	}
	return spec, skipped, nil // The last request is for all GPUs.
}

// cdiEdits returns the edits of a Linux container in the form of CDI. It leaves out the variables that select a GPU,
// because those of a specification replace the user's.
// https://github.com/cncf-tags/container-device-interface/blob/v1.1.1/pkg/cdi/container-edits.go
func cdiEdits(edits ocispec.Edits) cdispec.ContainerEdits {
	converted := cdispec.ContainerEdits{Env: slices.DeleteFunc(edits.Env, func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains([]string{gpuedits.DevicesVariable, gpuedits.CUDAVariable, gpuedits.MesaVariable}, name)
	})}
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

// notInCDIName matches the characters that the name of a CDI device cannot have.
var notInCDIName = regexp.MustCompile(`[^A-Za-z0-9_.:-]`)

// cdiName returns text as the name of a CDI device, which begins and ends with a letter or a digit.
func cdiName(text string) string {
	return strings.Trim(notInCDIName.ReplaceAllString(text, "-"), "_.:-")
}
