package noderuntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/advertiser/resources"
	"github.com/directx-nri/directx-nri/cmd/dxctl/containerd"
	"github.com/directx-nri/directx-nri/cmd/dxctl/nodegpus"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
)

type setupOptions struct {
	from        string // see [addFromFlag]
	configure   configureOptions
	noConfigure bool
	hostRoot    string
	setupFile   string // for directx-advertiser
	interval    time.Duration
	gpuFlags    nodegpus.Flags
	// defaultConfig is the configuration file that directx-advertiser reads by default.
	defaultConfig string
}

// NewSetupCommand returns 'dxctl runtime setup'.
func NewSetupCommand() *cobra.Command {
	o := setupOptions{interval: 5 * time.Second, gpuFlags: nodegpus.Flags{Trusted: true}, defaultConfig: paths.Default().Config}
	return o.command()
}

func (o *setupOptions) command() *cobra.Command {
	command := &cobra.Command{
		Use:   "setup",
		Short: "Wait until this node has a GPU, and then set it up",
		Long: `In a DaemonSet's pod: waits until the node has a GPU, or was set up before. Then does what
'dxctl runtime install' and 'dxctl runtime configure' do, and waits for a signal.`,
		Example: `  dxctl runtime setup --restart`,
		RunE:    func(c *cobra.Command, _ []string) error { return o.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	flags := command.Flags()
	o.configure.AddFlags(command)
	o.gpuFlags.AddSourceFlags(flags)
	addFromFlag(flags, &o.from)
	flags.BoolVar(&o.noConfigure, "no-configure", false, "do not change containerd's configuration")
	nodegpus.AddHostRootFlag(flags, &o.hostRoot)
	flags.StringVar(&o.setupFile, "setup-file", "", "`FILE` in which directx-advertiser reads whether the node is set up")
	return command
}

// run waits until the node has a GPU, sets the node up, and waits for the end of ctx.
func (o *setupOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := o.configure.CheckFlags(); err != nil {
		return err
	}
	if err := o.waitForGPU(ctx, stderr); err != nil || ctx.Err() != nil {
		return err
	}
	if err := o.setUp(ctx, stdout, stderr); err != nil {
		return err
	}
	if err := o.report(nil); err != nil {
		return err
	}
	fmt.Fprintln(stderr, "the node is set up; waiting for a signal")
	<-ctx.Done()
	return nil
}

func (o *setupOptions) setUp(ctx context.Context, stdout, stderr io.Writer) error {
	if !o.configure.noShim {
		if err := install(ctx, stdout, o.from, o.configure.shimDir, o.configure.stateDir); err != nil {
			return err
		}
	}
	if o.noConfigure {
		return nil
	}
	return o.configure.run(ctx, stdout, stderr)
}

// waitForGPU waits until the node has a GPU or was set up before, or ctx ends.
func (o *setupOptions) waitForGPU(ctx context.Context, out io.Writer) error {
	var last errlog.LastError
	for {
		reason := o.checkGPU(ctx)
		if reason == nil || ctx.Err() != nil {
			return nil
		}
		if last.Changed(reason) {
			fmt.Fprintf(out, "waiting for a GPU, and changing nothing: %s\n", errlog.Text(reason))
			if err := o.report(reason); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(o.interval):
		}
	}
}

// report notifies directx-advertiser that the node is set up, or why it is left unchanged.
func (o *setupOptions) report(reason error) error {
	if o.setupFile == "" {
		return nil
	}
	return durable.Replace(o.setupFile, []byte(errlog.Text(reason)), 0o600)
}

var errNoGPU = errors.New("no GPU to offer on this node")

// checkGPU returns nil if the node has a GPU or was set up before. It does not discover GPUs by
// --host-root, because this container cannot access the node's driver.
func (o *setupOptions) checkGPU(ctx context.Context) error {
	if containerd.IsConfigured(o.configure.stateDir) || durable.Exists(o.configure.shim()) {
		return nil
	}
	flags := o.gpuFlags
	flags.StateDir = o.configure.stateDir
	if flags.ConfigFile == "" && durable.Exists(o.defaultConfig) {
		flags.ConfigFile = o.defaultConfig // There is no node policy yet.
	}
	devices, p, err := flags.Devices(ctx, io.Discard, runtime.GOOS)
	if fileErr := err; err != nil && !errors.Is(err, node.ErrNoSource) && durable.Exists(policy.Path(flags.StateDir)) {
		flags.ConfigFile, flags.Inventory = "", "" // The last policy stays in force.
		if devices, p, err = flags.Devices(ctx, io.Discard, runtime.GOOS); err != nil {
			err = errors.Join(fileErr, err)
		}
	}
	if errors.Is(err, node.ErrNoSource) && durable.Exists(filepath.Join(o.hostRoot, "dev/dxg")) {
		return nil // The advertiser discovers the GPUs.
	}
	if err != nil {
		return err
	}
	isMissing := func(n discovery.DeviceNode) bool { return !durable.Exists(filepath.Join(o.hostRoot, n.Path)) }
	// An inventory can describe the GPUs of several nodes, and of both operating systems. Only the
	// GPUs that the advertiser would offer on this node are relevant.
	for _, d := range resources.Match(devices, p.Policy, runtime.GOOS) {
		if d.Rule != nil && !slices.ContainsFunc(d.DeviceNodes, isMissing) {
			return nil
		}
	}
	return errNoGPU
}
