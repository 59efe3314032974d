package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"directx-nri/advertiser"
	"directx-nri/discovery/live"
	"directx-nri/internal/allocation"
	"directx-nri/internal/cli"
	"directx-nri/internal/config"
	"directx-nri/internal/paths"
	"directx-nri/internal/readiness"
	"directx-nri/ocispec"
)

func newCommand() *cobra.Command {
	var settings cli.Settings
	command := &cobra.Command{
		Use:   "directx-advertiser",
		Short: "Offer this node's GPUs to the kubelet and record what it hands out",
		Long: `directx-advertiser is a Kubernetes device plugin, for two resources unless the
configuration file has rules for others:

  directx.microsoft.com/display   GPUs with the full WDDM driver model
  directx.microsoft.com/compute   compute-only devices (MCDM)

It offers --replicas replicas of each GPU and writes down which ones the kubelet
gave to which container. The container gets a token for that record and nothing
else. What the token stands for is added when containerd creates the container:
by the NRI plugin directx-nri, or, on Windows, where containerd calls no plugin, by
the runtime shim. As long as that one is not there to do so, containers that hold
a GPU are not started; and with --served-by shim no GPU is offered. Where containerd
starts only pods of some runtime handlers by the shim, pods of the others that
hold a GPU are not started.

It needs no access to the cluster, and runs as root. The kubelet and containerd
may be restarted at any time. The configuration file is read again when it has
changed. Each flag but --config has a variable of the environment too, such as
DIRECTX_NRI_LOG_LEVEL; a flag counts more than a variable, and that more than
the file.`,
		Example: `  # four containers may share each GPU of the inventory file
  directx-advertiser --inventory /etc/directx-nri/inventory.yaml --replicas 4

  # containerd starts containers by our runtime shim
  directx-advertiser --inventory /etc/directx-nri/inventory.yaml --served-by shim

  # Windows: the GPUs that the node has
  directx-advertiser --replicas 4`,
		Version: cli.Version(version),
	}
	settings.AddFlags(command.Flags(), config.Advertiser)
	command.RunE = settings.Run(func(ctx context.Context, c config.Config, log *logrus.Logger) error {
		return run(ctx, c, &settings, log)
	})
	return command
}

// run advertises until ctx ends. settings read the configuration again when the
// file has changed.
func run(ctx context.Context, c config.Config, settings *cli.Settings, log *logrus.Logger) (err error) {
	source, err := live.OpenWithUUIDs(c.Inventory, log)
	if err != nil {
		return cli.Usage("--inventory is required: %w", err)
	}
	recorder, err := allocation.OpenRecorder(ctx, paths.Allocations(c.StateDir), log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, recorder.Close()) }()
	m := newMetrics(c)
	serving, err := newServing(c, source, recorder, m, log)
	if err != nil {
		return err
	}
	defer serving.close()
	device, err := advertiser.New(advertiser.Config{
		Source:          serving.source,
		Recorder:        serving.recorder,
		Resources:       c.Resources,
		KubeletDir:      c.Kubelet.DevicePlugins,
		Ready:           serving.ready,
		Inject:          serving.inject,
		Windows:         c.ContainerOS == string(ocispec.Windows),
		Observer:        m,
		Pods:            advertiser.PodResourcesPods(c.Kubelet.PodResources),
		FailOnInitError: c.FailOnInitError,
		Log:             log,
	})
	if err != nil {
		return err
	}

	watcher := settings.Watcher(c, log, cli.Reload{
		Changed: func(now config.Config) {
			serving.configure(now)
			device.SetResources(now.Resources)
		},
		Counted: func(err error) { m.Reloaded(time.Now(), err) },
	})
	serving.over(device, c)
	server, err := listen(ctx, c, m, device, serving.there, log)
	if err != nil {
		return err
	}

	log.WithField("version", cli.Version(version)).Info("directx-advertiser starts")
	defer log.Info("directx-advertiser ends")
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return device.Run(ctx) })
	group.Go(func() error { return watcher.Run(ctx) })
	for _, part := range serving.run {
		group.Go(func() error { return part(ctx) })
	}
	if server != nil {
		group.Go(func() error { return server.Run(ctx) })
	}
	return group.Wait()
}

// pluginReady returns the check that the NRI plugin works.
func pluginReady(c config.Config) func(context.Context, advertiser.Start) error {
	return func(ctx context.Context, _ advertiser.Start) error {
		if err := readiness.Check(ctx, filepath.Join(c.RuntimeDir, readiness.SocketName)); err != nil {
			return fmt.Errorf("%w; is directx-nri running on this node, and is NRI enabled in containerd?", err)
		}
		return nil
	}
}
