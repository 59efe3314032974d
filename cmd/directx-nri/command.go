package main

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/metrics"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/readiness"
	"github.com/directx-nri/directx-nri/nri"
)

type options struct {
	stateDir, runtimeDir, hostRoot, nriSocket, nriIndex, metricsAddress string
	criSocket                                                           string
}

func newCommand() *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "directx-nri",
		Short: "Add allocated GPUs to containers",
		Long: `directx-nri is an NRI plugin. When containerd creates a container with an
allocation of directx-advertiser, it adds the GPU's devices and, read-only, its
driver files. A container whose allocation cannot be honored is refused
with the reason. Containers without an allocation are not changed.

It acts on the node policy in the state directory, which directx-advertiser
compiles from the configuration, and reads it at each decision.

It needs containerd 1.7 or newer with NRI enabled, and runs as root. It registers
again whenever containerd restarts.`,
		Example: `  directx-nri --metrics-address :9401`,
		Version: cli.Version(version),
		RunE: func(c *cobra.Command, _ []string) error {
			return run(c.Context(), o, c.ErrOrStderr())
		},
	}
	defaults := paths.Default()
	flags := command.Flags()
	flags.StringVar(&o.stateDir, "state-dir", defaults.State, "`DIRECTORY` of the node policy and the allocation records")
	flags.StringVar(&o.runtimeDir, "runtime-dir", defaults.Runtime, "`DIRECTORY` of the socket by which directx-advertiser checks that the plugin works")
	flags.StringVar(&o.hostRoot, "host-root", "/", "`DIRECTORY` where the node's root directory is mounted")
	flags.StringVar(&o.nriSocket, "nri-socket", defaults.NRI, "containerd's NRI `SOCKET`")
	flags.StringVar(&o.nriIndex, "nri-index", "50", "`INDEX` of the plugin among all NRI plugins, from 00 to 99")
	flags.StringVar(&o.criSocket, "cri-socket", "", "containerd's CRI `SOCKET`, to find out which runtime handlers run runc")
	flags.StringVar(&o.metricsAddress, "metrics-address", "", "`HOST:PORT` of the metrics and health endpoints; \"\" disables them")
	cli.AddEnvironment(command)
	return command
}

func (o options) check() error {
	switch {
	case o.nriSocket == "":
		return cli.UsageError("--nri-socket is required: containerd calls NRI plugins on Linux only")
	case len(o.nriIndex) != 2 || strings.Trim(o.nriIndex, "0123456789") != "":
		return cli.UsageError("--nri-index %q is not a number from 00 to 99", o.nriIndex)
	}
	return nil
}

func run(ctx context.Context, o options, stderr io.Writer) error {
	if err := o.check(); err != nil {
		return err
	}
	log := errlog.NewLogger(stderr)
	policy.Default().Log.Configure(log)
	files := hostfiles.Root(o.hostRoot)
	if _, err := decision.Open(o.stateDir, "linux", files, log); err != nil {
		// The plugin starts nevertheless: only containers that request a GPU depend on the policy.
		log.WithError(err).Error("Containers that request a GPU are refused until the node policy is fixed")
	}
	m := metrics.New("directx-nri", cli.Version(version))
	plugin := nri.NewPlugin(nri.Config{
		Socket: o.nriSocket, Index: o.nriIndex, CRISocket: o.criSocket,
		StateDir: o.stateDir, Files: files, Metrics: m, Log: log,
	})
	health := metrics.Health{Alive: plugin.CheckAlive, Ready: plugin.CheckReady}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return m.Serve(ctx, o.metricsAddress, health, log) })
	log.WithField("version", cli.Version(version)).Info("Starting directx-nri")
	defer log.Info("Stopped directx-nri")
	group.Go(func() error { return readiness.Serve(ctx, o.runtimeDir, plugin.CheckReady, log) })
	group.Go(func() error {
		plugin.Run(ctx)
		return nil
	})
	return group.Wait()
}
