package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/advertiser/resources"
	"github.com/directx-nri/directx-nri/cmd/dxctl/gpus"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/readiness"
	"github.com/directx-nri/directx-nri/internal/service"
	"github.com/directx-nri/directx-nri/internal/shimfile"
)

type setupOptions struct {
	gpus.Node
	shimDir, hostRoot string
	// reportFile is read by the advertiser.
	reportFile string
	// defaultConfig is the configuration file that the advertiser reads.
	defaultConfig string
	interval      time.Duration
	programs      func(name string) []string // [service.Programs]
}

func newSetupCommand() *cobra.Command {
	places := paths.Default()
	o := setupOptions{defaultConfig: places.Config, interval: 5 * time.Second, programs: service.Programs}
	command := &cobra.Command{
		Use:   "setup [flags] -- COMMAND [flags] [-- COMMAND [flags]]...",
		Short: "Wait until this node has a GPU, and then set it up",
		Long: `In a DaemonSet's pod: runs commands of 'dxctl runtime' when the node has a GPU, or was
set up before, and waits for a signal.`,
		Example: `  dxctl runtime setup -- install -- configure --restart`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			steps, err := parseSteps(args)
			if err != nil {
				return err
			}
			return o.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), steps)
		},
	}
	flags := command.Flags()
	o.Node.AddFlags(flags)
	flags.StringVar(&o.shimDir, "shim-dir", places.ShimDir, "`DIRECTORY` of the runtime shim")
	flags.StringVar(&o.hostRoot, "host-root", "", "mount point of the node's root `DIRECTORY`, in a container on Linux")
	flags.StringVar(&o.reportFile, "setup-file", "", "`FILE` that directx-advertiser reads: whether the node is set up")
	return command
}

// parseSteps returns the commands in args, which "--" separates, with their flags parsed.
func parseSteps(args []string) (steps []*cobra.Command, err error) {
	for len(args) > 0 {
		words := args
		if end := slices.Index(args, "--"); end >= 0 {
			words, args = args[:end], args[end+1:]
		} else {
			args = nil
		}
		step, rest, err := newRuntimeCommand().Find(words)
		if err == nil {
			err = step.ParseFlags(rest)
		}
		if err != nil {
			return nil, cli.Usage("%s: %w", strings.Join(words, " "), err)
		}
		if step.RunE == nil || step.Flags().NArg() > 0 {
			return nil, cli.Usage("%q is no command of 'dxctl runtime'", words)
		}
		steps = append(steps, step)
	}
	return steps, nil
}

// run sets the node up when it has a GPU, and waits for the end of ctx.
func (o *setupOptions) run(ctx context.Context, stdout, stderr io.Writer, steps []*cobra.Command) error {
	if err := o.waitForGPU(ctx, stderr); err != nil || ctx.Err() != nil {
		return err
	}
	if !o.wasSetUp() {
		if err := checkKubelet(ctx, o.programs); err != nil {
			return fmt.Errorf("nothing was changed: %w", err)
		}
	}
	for _, step := range steps {
		step.SetContext(ctx)
		step.SetOut(stdout)
		step.SetErr(stderr)
		if err := step.RunE(step, nil); err != nil {
			return fmt.Errorf("%s: %w", step.Name(), err)
		}
	}
	if err := o.report(nil); err != nil {
		return err
	}
	fmt.Fprintln(stderr, "the node is set up; waiting for a signal")
	<-ctx.Done()
	return nil
}

// waitForGPU returns when the node has a GPU or was set up before, or ctx ends.
func (o *setupOptions) waitForGPU(ctx context.Context, out io.Writer) error {
	last := ""
	for {
		reason := o.checkGPU(ctx)
		if reason == nil || ctx.Err() != nil {
			return nil
		}
		if text := reason.Error(); text != last {
			fmt.Fprintf(out, "waiting for a GPU, and changing nothing: %s\n", text)
			last = text
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

// report notifies the advertiser why the node is left as it is, or that it is set up.
func (o *setupOptions) report(reason error) error {
	if o.reportFile == "" {
		return nil
	}
	return readiness.ReportSetup(o.reportFile, reason)
}

var errNoGPU = errors.New("no GPU to offer on this node")

// wasSetUp reports whether an earlier run has changed the node.
func (o *setupOptions) wasSetUp() bool {
	return exists(filepath.Join(o.StateDir, journalName)) || exists(filepath.Join(o.shimDir, shimfile.Name()))
}

// checkKubelet returns an error for a kubelet that would not start again after a restart.
// On Windows, 1.31.0 leaves the socket of its last run in place (CleanupPluginDirectory in
// pkg/kubelet/cm/devicemanager/manager.go).
// https://github.com/kubernetes/kubernetes/pull/127100, in 1.31.1
func checkKubelet(ctx context.Context, programs func(name string) []string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, path := range programs("kubelet.exe") {
		if durable.CheckFile(path) != nil {
			continue // We run with all privileges.
		}
		out, _ := exec.CommandContext(ctx, path, "--version").Output() // Without an answer, the version is unknown.
		version, _, _ := strings.Cut(strings.TrimSpace(string(out)), "+")
		if version, _, _ = strings.Cut(version, "-"); version == "Kubernetes v1.31.0" {
			return fmt.Errorf("%s is of Kubernetes 1.31.0 and does not start again after a restart (kubernetes/kubernetes#126965); update it to 1.31.1 or later", path)
		}
	}
	return nil
}

// checkGPU returns nil if the node has a GPU or was set up before.
func (o *setupOptions) checkGPU(ctx context.Context) error {
	if o.wasSetUp() {
		return nil
	}
	n := o.Node
	n.Trusted = true
	if n.ConfigFile == "" && exists(o.defaultConfig) {
		n.ConfigFile = o.defaultConfig // There is no node policy yet.
	}
	source, p, err := n.Open(io.Discard)
	if errors.Is(err, node.ErrNoInventory) && exists(filepath.Join(o.hostRoot, "dev/dxg")) {
		return nil // The advertiser discovers the GPUs. This container cannot access the driver.
	}
	if err != nil {
		return err
	}
	devices, err := source.Devices(ctx)
	if err != nil {
		return err
	}
	// Only a GPU that the advertiser would offer counts. An inventory can be that of several
	// nodes, also of both operating systems.
	for _, a := range (resources.Node{OS: runtime.GOOS, OneResource: resources.LimitedToOne(p, runtime.GOOS)}).Assign(devices, p.Resources) {
		if a.Rule != nil && !slices.ContainsFunc(a.Device.DeviceNodes, o.lacks) {
			return nil
		}
	}
	return errNoGPU
}

// lacks reports whether a device node does not exist.
func (o *setupOptions) lacks(n discovery.DeviceNode) bool {
	_, err := os.Stat(filepath.Join(o.hostRoot, n.Path))
	return err != nil
}
