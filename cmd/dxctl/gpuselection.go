package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/discovery/nvidia"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/ocispec/modes"
)

// gpuSelection has the flags that select the policy, the GPUs and the driver files of a command. The default
// is those of this node.
type gpuSelection struct {
	// Request names GPUs in the form of DIRECTX_VISIBLE_DEVICES. [decision.Select] reads it.
	Request string

	StateDir, ConfigFile, Inventory string
	// HostRoot is the node's root directory, "" for this system's.
	HostRoot    string
	assumeFiles bool
	stdin       []byte // see [readStdin]
	// AsShim reads the GPUs as the shim does: on Linux, those that were discovered last.
	AsShim bool
}

// AddFlags adds the flags that select the policy and the GPUs.
func (f *gpuSelection) AddFlags(command *cobra.Command) {
	command.PreRunE = func(command *cobra.Command, _ []string) (err error) {
		f.stdin, err = readStdin(command, f.Inventory, f.ConfigFile)
		return err
	}
	flags := command.Flags()
	flags.StringVar(&f.Inventory, "inventory", "", "inventory `FILE` of the GPUs, - for standard input (default: this node's GPUs)")
	flags.StringVar(&f.ConfigFile, "config", "", "configuration `FILE`, - for standard input (default: the node policy in force)")
	flags.StringVar(&f.StateDir, "state-dir", paths.Default().State, "state `DIRECTORY`")
}

// readStdin returns standard input if it is one of files, by the name -. Otherwise it returns nil.
func readStdin(command *cobra.Command, files ...string) ([]byte, error) {
	if !slices.Contains(files, "-") {
		return nil, nil
	}
	return io.ReadAll(command.InOrStdin())
}

// AddFileFlags adds the flags that select driver files.
func (f *gpuSelection) AddFileFlags(command *cobra.Command) {
	addHostRootFlag(command.Flags(), &f.HostRoot)
	command.Flags().BoolVar(&f.assumeFiles, "assume-files", false, "assume that all driver files exist")
	command.MarkFlagsMutuallyExclusive("assume-files", "host-root")
}

// addHostRootFlag adds the flag for the node's root directory.
func addHostRootFlag(flags *pflag.FlagSet, root *string) {
	flags.StringVar(root, "host-root", "", "mount point of the node's root `DIRECTORY` (default: this system's)")
}

// AddRequestFlag adds the flag --gpus. Its default is f.Request.
func (f *gpuSelection) AddRequestFlag(flags *pflag.FlagSet, usage string) {
	flags.StringVar(&f.Request, "gpus", f.Request, usage+": all, or a comma-separated `LIST` of indices, location paths or LUIDs")
}

// Files returns where driver files are looked up.
func (f *gpuSelection) Files() decision.Files {
	if f.assumeFiles {
		return hostfiles.Assumed{}
	}
	return hostfiles.Root(f.HostRoot)
}

// ReportSkipped prints driver files that a container does not get.
func (f *gpuSelection) ReportSkipped(stderr io.Writer, skipped []string) {
	const limit = 3
	for _, file := range skipped[:min(limit, len(skipped))] {
		fmt.Fprintf(stderr, "dxctl: left out: %s\n", file)
	}
	if more := len(skipped) - limit; more > 0 {
		fmt.Fprintf(stderr, "dxctl: left out: %d more driver files\n", more)
	}
	if len(skipped) > 0 && f.HostRoot == "" {
		fmt.Fprintln(stderr, "dxctl: for a node other than this one, add --assume-files, or --host-root")
	}
}

// Open returns the source of the GPUs, and the resolved policy for containers of this operating
// system.
func (f *gpuSelection) Open(stderr io.Writer, containerOS string) (discovery.Source, policy.Resolved, error) {
	compiled, err := f.read(stderr, containerOS)
	p, devices := compiled.Policy, compiled.Devices
	if err != nil {
		return nil, policy.Resolved{}, err
	}
	var source discovery.Source
	switch {
	case f.Inventory != "":
		devices, _, err = config.Compiler{InspectOnly: true, Stdin: f.stdin}.ReadInventory(f.Inventory)
		source = discovery.Static(devices)
	case f.ConfigFile != "" && p.UseInventory:
		source = discovery.Static(devices)
	default:
		options := node.Options{UseInventory: p.UseInventory, StateDir: f.StateDir, HostRoot: f.HostRoot}
		if !f.AsShim {
			options.UUIDs = nvidia.NewUUIDs(f.HostRoot)
		}
		source, err = node.Open(options)
		err = errlog.WithRemedy(err, "set --inventory to a file with the GPUs")
	}
	if err != nil {
		return nil, policy.Resolved{}, err
	}
	source, resolved := modes.ResolvePolicy(source, p, containerOS)
	return source, resolved, nil
}

// Devices returns the GPUs, and the resolved policy for containers of this operating system.
func (f *gpuSelection) Devices(ctx context.Context, stderr io.Writer, containerOS string) ([]discovery.Device, policy.Resolved, error) {
	source, p, err := f.Open(stderr, containerOS)
	if err != nil {
		return nil, p, err
	}
	devices, err := source.Devices(ctx)
	return devices, p, err
}

// read returns the policy for containers of this operating system, and the devices of the inventory
// that the file of --config names.
func (f *gpuSelection) read(stderr io.Writer, containerOS string) (config.Compiled, error) {
	if f.ConfigFile != "" {
		return config.Compiler{
			File: f.ConfigFile, Required: true, StateDir: f.StateDir, NodeOS: containerOS, InspectOnly: f.Inventory != "", Stdin: f.stdin,
		}.Compile()
	}
	p, err := policy.Read(f.StateDir)
	if errors.Is(err, fs.ErrPermission) && f.Inventory != "" {
		fmt.Fprintf(stderr, "dxctl: the defaults are used instead of the node policy: %s\n", errlog.Text(err))
		return config.Compiled{Policy: policy.Default()}, nil
	}
	return config.Compiled{Policy: p}, err
}
