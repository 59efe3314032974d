// Package gpus selects the GPUs of a node by flags, and reports them.
package gpus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/capabilities"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/config"
	"github.com/directx-nri/directx-nri/internal/hostfiles"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/ocispec"
)

// Node selects the policy, the GPUs and the driver files that a command uses: by default those
// of this node.
type Node struct {
	StateDir, ConfigFile, Inventory string
	// Trusted refuses an inventory that other users can write: the command acts on it.
	Trusted bool
	// HostRoot is the node's root directory, "" for this system's.
	HostRoot    string
	assumeFiles bool
}

// AddFlags adds the flags that select the policy and the GPUs.
func (n *Node) AddFlags(flags *pflag.FlagSet) {
	n.AddSourceFlags(flags)
	flags.StringVar(&n.StateDir, "state-dir", paths.Default().State, "state `DIRECTORY`")
}

// AddFileFlags adds the flags that select driver files.
func (n *Node) AddFileFlags(flags *pflag.FlagSet) {
	AddHostRootFlag(flags, &n.HostRoot)
	flags.BoolVar(&n.assumeFiles, "assume-files", false, "assume that all driver files exist")
}

// AddHostRootFlag adds the flag for the node's root directory.
func AddHostRootFlag(flags *pflag.FlagSet, root *string) {
	flags.StringVar(root, "host-root", "", "mount point of the node's root `DIRECTORY` (default: this system's)")
}

// Check returns an error about flags that exclude each other.
func (n *Node) Check() error {
	if n.assumeFiles && n.HostRoot != "" {
		return cli.Usage("--assume-files excludes --host-root")
	}
	return nil
}

// Root returns the directory below which the files of a node are looked up.
func Root(hostRoot string) hostfiles.Root {
	if hostRoot == "" && runtime.GOOS != "windows" {
		return "/"
	}
	return hostfiles.Root(hostRoot)
}

// Files returns where driver files are looked up.
func (n *Node) Files() decision.Files {
	if n.assumeFiles {
		return hostfiles.Assumed{}
	}
	return Root(n.HostRoot)
}

// ReportMissing prints driver files that a container does not get.
func (n *Node) ReportMissing(stderr io.Writer, notes []ocispec.Note) {
	const most = 3
	notes = slices.DeleteFunc(slices.Clone(notes), func(n ocispec.Note) bool { return n.Minor })
	for _, note := range notes[:min(most, len(notes))] {
		fmt.Fprintf(stderr, "dxctl: left out: %s\n", note)
	}
	if more := len(notes) - most; more > 0 {
		fmt.Fprintf(stderr, "dxctl: left out: %d more driver files\n", more)
	}
	if len(notes) > 0 && n.HostRoot == "" {
		fmt.Fprintln(stderr, "dxctl: for a node other than this one, add --assume-files, or --host-root")
	}
}

// AddSourceFlags adds the flags that name files.
func (n *Node) AddSourceFlags(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&n.Inventory, "inventory", "", "inventory `FILE` of the GPUs (default: this node's GPUs)")
	flags.StringVar(&n.ConfigFile, "config", "", "configuration `FILE` (default: the node policy in force)")
}

// Open returns the source of the GPUs, and the policy in force for containers of os.
func (n *Node) Open(stderr io.Writer, os string) (discovery.Source, policy.Policy, error) {
	p, devices, err := n.read(stderr)
	if err != nil {
		return nil, p, err
	}
	var source discovery.Source = discovery.Static(devices)
	switch {
	case n.Inventory != "":
		if devices, err = (config.Compiler{Inspect: !n.Trusted}).ReadInventory(n.Inventory); err != nil {
			return nil, p, err
		}
		source = discovery.Static(devices)
	case n.ConfigFile != "" && p.UseInventory:
	default:
		p.UseInventory = p.UseInventory && n.ConfigFile == ""
		if source, err = OpenSource(p, n.StateDir, n.HostRoot); err != nil {
			return nil, p, fmt.Errorf("%w; --inventory names a file", err)
		}
	}
	p = capabilities.InForce(p, os)
	return discovery.ForPolicy(source, p, os), p, nil
}

// Devices returns the GPUs, and the policy in force for containers of os.
func (n *Node) Devices(ctx context.Context, stderr io.Writer, os string) ([]discovery.Device, policy.Policy, error) {
	source, p, err := n.Open(stderr, os)
	if err != nil {
		return nil, p, err
	}
	devices, err := source.Devices(ctx)
	return devices, p, err
}

// Complete returns a completion of values of the GPUs' reports.
func (n *Node) Complete(value func(Report) string) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, _ string) (list []cobra.Completion, _ cobra.ShellCompDirective) {
		devices, p, err := n.Devices(c.Context(), io.Discard, runtime.GOOS)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		for _, r := range NewReports(devices, p, runtime.GOOS) {
			if text := value(r); text != "" {
				list = append(list, cobra.CompletionWithDesc(text, r.Description))
			}
		}
		return list, cobra.ShellCompDirectiveNoFileComp
	}
}

// read returns the policy, and the devices of the inventory that the file of --config names.
func (n *Node) read(stderr io.Writer) (policy.Policy, []discovery.Device, error) {
	if n.ConfigFile != "" {
		return config.Compiler{File: n.ConfigFile, Required: true, StateDir: n.StateDir, NodeOS: runtime.GOOS, Inspect: n.Inventory != ""}.Compile()
	}
	p, err := policy.Read(n.StateDir)
	if errors.Is(err, fs.ErrPermission) && n.Inventory != "" {
		fmt.Fprintf(stderr, "dxctl: the defaults are used instead of the node policy: %v\n", err)
		return policy.Default(), nil, nil
	}
	return p, nil, err
}

// OpenSource opens the source of the GPUs of a node with the policy p. hostRoot is as in [Node].
func OpenSource(p policy.Policy, stateDir, hostRoot string) (discovery.Source, error) {
	return node.Open(node.Options{UseInventory: p.UseInventory, StateDir: stateDir, HostRoot: hostRoot, Live: true})
}

// Follow calls do at once and after each change of source, until ctx ends or do fails.
func Follow(ctx context.Context, source discovery.Source, do func() error) (failed error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	changed := func() {
		if failed == nil {
			failed = do()
		}
		if failed != nil {
			stop()
		}
	}
	changed()
	if err := source.Watch(ctx, changed); ctx.Err() == nil {
		return errors.Join(err, errors.New("the watch of the GPUs ended unexpectedly"))
	}
	return failed
}
