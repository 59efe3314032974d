package main

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"directx-nri/discovery/live"
	"directx-nri/internal/allocation"
	"directx-nri/internal/capabilities"
	"directx-nri/internal/cli"
	"directx-nri/internal/config"
	"directx-nri/internal/hostfiles"
	"directx-nri/internal/paths"
	"directx-nri/internal/readiness"
	"directx-nri/nri"
	"directx-nri/nri/decision"
	"directx-nri/ocispec"
)

func newCommand() *cobra.Command {
	var settings cli.Settings
	command := &cobra.Command{
		Use:   "directx-nri",
		Short: "Give containers the GPUs that were allocated to them",
		Long: `directx-nri is an NRI plugin. When containerd creates a container that holds an
allocation recorded by directx-advertiser, it adds the GPU's devices and its
driver's runtime files, read-only. A container whose allocation cannot be
honoured is refused with the reason; one without an allocation is not touched.

It needs containerd 1.7 or newer with NRI enabled, and runs as root. It stays
registered for as long as it runs: containerd may be restarted at any time. The
configuration file is read again when it has changed. Each flag but --config has
a variable of the environment too, such as DIRECTX_NRI_LOG_LEVEL; a flag counts
more than a variable, and that more than the file.`,
		Example: `  # GPUs as an inventory file describes them
  directx-nri --inventory /etc/directx-nri/inventory.yaml`,
		Version: cli.Version(version),
	}
	settings.AddFlags(command.Flags(), config.Plugin)
	command.RunE = settings.Run(func(ctx context.Context, c config.Config, log *logrus.Logger) error {
		return run(ctx, c, &settings, log)
	})
	return command
}

// run serves containerd until ctx ends. settings read the configuration again
// when the file has changed.
func run(ctx context.Context, c config.Config, settings *cli.Settings, log *logrus.Logger) error {
	os, err := check(c)
	if err != nil {
		return err
	}
	source, err := live.Open(c.Inventory, log)
	if err != nil {
		return cli.Usage("--inventory is required: %w", err)
	}
	if _, err := source.Devices(ctx); err != nil {
		// Staying up keeps the node's other containers going, and needs nobody
		// once the file is mended.
		log.WithError(err).Error("the GPUs of this node are not known; containers that hold one are refused until this is mended")
	}
	m := newMetrics(c)
	ready := readiness.NewServer(filepath.Join(c.RuntimeDir, readiness.SocketName))
	evictor := nri.NewEvictor(c.Containerd.CRISocket, log)
	evictor.Observer = m
	adjuster := &nri.Adjuster{
		Decider: decision.Decider{
			Source: source,
			Store:  allocation.OpenStore(paths.Allocations(c.StateDir)),
			Files:  hostfiles.Root(c.HostRoot),
			Log:    log,
		},
		OS: os,
	}
	configure := func(now config.Config) {
		assignment := capabilities.Resolve(now.Assignment, now.ContainerOS, capabilities.Ask)
		log.WithFields(logrus.Fields{"mode": assignment.Mode(), "reason": assignment.Reason}).Info("how containers are given devices")
		m.SetAssignment(string(assignment.Mode()), assignment.Reason)
		adjuster.Configure(decision.PolicyOf(now, !assignment.Individual))
	}
	configure(c)
	watcher := settings.Watcher(c, log, cli.Reload{Changed: configure, Counted: func(err error) { m.Reloaded(time.Now(), err) }})
	plugin := nri.NewPlugin(adjuster, evictor.Stop)
	plugin.Observer = m
	var registered atomic.Bool
	runner := &nri.Runner{
		Socket: c.Containerd.NRISocket, Name: "directx", Index: c.Containerd.NRIIndex,
		Hooks: plugin.Hooks, Drain: plugin.Drain, Log: log,
		Serving: func(serving bool) {
			ready.SetServing(serving)
			registered.Store(serving)
			if serving {
				log.WithField("socket", c.Containerd.NRISocket).Info("registered with the container runtime")
			}
		},
	}
	server, err := listen(ctx, c, m, plugin.Alive, registered.Load, log)
	if err != nil {
		return err
	}

	log.WithField("version", cli.Version(version)).Info("directx-nri starts")
	defer log.Info("directx-nri ends")
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return ready.Run(ctx) })
	group.Go(func() error { return watcher.Run(ctx) })
	group.Go(func() error { return evictor.Run(ctx) })
	group.Go(func() error { return runner.Run(ctx) })
	if server != nil {
		group.Go(func() error { return server.Run(ctx) })
	}
	return group.Wait()
}

// check returns the containers' operating system, or what is wrong with the
// settings.
func check(c config.Config) (ocispec.OS, error) {
	if c.Containerd.NRISocket == "" {
		return "", cli.Usage("--nri-socket is required: containerd calls NRI plugins on Linux only")
	}
	return ocispec.ParseOS(c.ContainerOS)
}
