package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"directx-nri/discovery"
	"directx-nri/internal/paths"
	"directx-nri/internal/shimfile"
)

type waitOptions struct {
	nodeConfig
	shimDir, hostRoot string
	// defaultConfig is the configuration file that the advertiser reads.
	defaultConfig string
	interval      time.Duration
}

func newWaitCommand() *cobra.Command {
	places := paths.Default()
	o := waitOptions{defaultConfig: places.Config, interval: 5 * time.Second}
	command := &cobra.Command{
		Use:   "wait",
		Short: "Wait until this node has a GPU",
		Long: `Returns when the node has a GPU, or was set up before: the first step of a DaemonSet's
pod, so that nodes without a GPU are left as they are.`,
		Example: `  dxctl runtime wait`,
		RunE:    func(c *cobra.Command, _ []string) error { return o.run(c.Context(), c.ErrOrStderr()) },
	}
	flags := command.Flags()
	o.addFlags(flags)
	flags.StringVar(&o.shimDir, "shim-dir", places.ShimDir, "`DIRECTORY` of the runtime shim")
	flags.StringVar(&o.hostRoot, "host-root", "", "`DIRECTORY` where the node's root is mounted, in a container on Linux")
	return command
}

func (o *waitOptions) run(ctx context.Context, out io.Writer) error {
	last := ""
	for {
		reason := o.found(ctx)
		if reason == nil {
			return nil
		}
		if text := reason.Error(); text != last {
			fmt.Fprintf(out, "waiting for a GPU, and changing nothing: %s\n", text)
			last = text
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(o.interval):
		}
	}
}

var errNoGPU = errors.New("this node has none")

// found returns nil if the node has a GPU or was set up before.
func (o *waitOptions) found(ctx context.Context) error {
	if exists(filepath.Join(o.stateDir, journalName)) || exists(filepath.Join(o.shimDir, shimfile.Name())) {
		return nil
	}
	n := o.nodeConfig
	if n.config == "" && exists(o.defaultConfig) {
		n.config = o.defaultConfig // There is no node policy yet.
	}
	source, _, err := n.open(io.Discard)
	if err != nil {
		return err
	}
	devices, err := source.Devices(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(devices, o.present) {
		return errNoGPU
	}
	return nil
}

// present reports whether a device is a GPU of this node. An inventory can be that of
// several nodes.
func (o *waitOptions) present(d discovery.Device) bool {
	missing := func(n discovery.DeviceNode) bool {
		_, err := os.Stat(filepath.Join(o.hostRoot, n.Path))
		return err != nil
	}
	return d.Kind() != discovery.KindNone && !slices.ContainsFunc(d.DeviceNodes, missing)
}
