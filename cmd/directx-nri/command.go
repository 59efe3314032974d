package main

import (
	"context"
	"path/filepath"
	"regexp"
	"runtime"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"directx-nri/discovery/live"
	"directx-nri/internal/allocation"
	"directx-nri/internal/cli"
	"directx-nri/internal/hostfiles"
	"directx-nri/internal/paths"
	"directx-nri/internal/readiness"
	"directx-nri/nri"
	"directx-nri/nri/decision"
	"directx-nri/ocispec"
)

type options struct {
	logging     cli.Logging
	inventory   string
	stateDir    string
	runtimeDir  string
	nriSocket   string
	nriIndex    string
	criSocket   string
	hostRoot    string
	containerOS string
}

func newCommand() *cobra.Command {
	var o options
	places := paths.OfThisSystem()
	command := &cobra.Command{
		Use:   "directx-nri",
		Short: "Give containers the GPUs that were allocated to them",
		Long: `directx-nri is an NRI plugin. When containerd creates a container that holds an
allocation recorded by directx-advertiser, it adds the GPU's devices and its
driver's runtime files, read-only. A container whose allocation cannot be
honoured is refused with the reason; one without an allocation is not touched.

It needs containerd 1.7 or newer with NRI enabled, and runs as root. It stays
registered for as long as it runs: containerd may be restarted at any time.`,
		Example: `  # GPUs as an inventory file describes them
  directx-nri --inventory /etc/directx-nri/inventory.yaml`,
		Version: cli.Version(version),
	}
	command.RunE = o.logging.Run(o.run)
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&o.inventory, "inventory", "", "inventory file that describes this node's GPUs; on Windows \"\" finds them")
	flags.StringVar(&o.stateDir, "state-dir", places.State, "folder of the allocation records; the same as the advertiser's")
	flags.StringVar(&o.runtimeDir, "runtime-dir", places.Runtime, "folder of the socket by which the advertiser sees that this plugin is there; the same as the advertiser's")
	flags.StringVar(&o.nriSocket, "nri-socket", places.NRI, "containerd's NRI socket")
	flags.StringVar(&o.nriIndex, "nri-index", "50", "place among the NRI plugins, 00 to 99: lower ones are asked first")
	flags.StringVar(&o.criSocket, "cri-socket", places.CRI, "containerd's CRI socket, to stop containers that were started without their GPU")
	flags.StringVar(&o.hostRoot, "host-root", "/", "where the node's root directory is mounted, for a plugin that runs in a container")
	flags.StringVar(&o.containerOS, "container-os", runtime.GOOS, "operating system of the node's containers, for simulated nodes: windows or linux")
	o.logging.AddFlags(flags)
	return command
}

func (o *options) run(ctx context.Context, log *logrus.Logger) error {
	os, err := o.check()
	if err != nil {
		return err
	}
	source, err := live.Open(o.inventory, log)
	if err != nil {
		return cli.Usage("--inventory is required: %w", err)
	}
	if _, err := source.Devices(ctx); err != nil {
		// Staying up keeps the node's other containers going, and needs nobody
		// once the file is mended.
		log.WithError(err).Error("the GPUs of this node are not known; containers that hold one are refused until this is mended")
	}
	ready := readiness.NewServer(filepath.Join(o.runtimeDir, readiness.SocketName))
	evictor := nri.NewEvictor(o.criSocket, log)
	plugin := nri.NewPlugin(&nri.Adjuster{
		Decider: decision.Decider{
			Source: source,
			Store:  allocation.OpenStore(paths.Allocations(o.stateDir)),
			Files:  hostfiles.Root(o.hostRoot),
			Log:    log,
		},
		OS: os,
	}, evictor.Stop)
	runner := &nri.Runner{
		Socket: o.nriSocket, Name: "directx", Index: o.nriIndex,
		Hooks: plugin.Hooks, Drain: plugin.Drain, Log: log,
		Serving: func(serving bool) {
			ready.SetServing(serving)
			if serving {
				log.WithField("socket", o.nriSocket).Info("registered with the container runtime")
			}
		},
	}

	log.WithField("version", cli.Version(version)).Info("directx-nri starts")
	defer log.Info("directx-nri ends")
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return ready.Run(ctx) })
	group.Go(func() error { return evictor.Run(ctx) })
	group.Go(func() error { return runner.Run(ctx) })
	return group.Wait()
}

// check returns the containers' operating system, or what is wrong with the
// flags.
func (o *options) check() (ocispec.OS, error) {
	switch {
	case o.nriSocket == "":
		return "", cli.Usage("--nri-socket is required: containerd calls NRI plugins on Linux only")
	case !regexp.MustCompile(`^[0-9]{2}$`).MatchString(o.nriIndex):
		return "", cli.Usage("--nri-index %q is not a number from 00 to 99", o.nriIndex)
	}
	os, err := ocispec.ParseOS(o.containerOS)
	if err != nil {
		return "", cli.Usage("--container-os: %w", err)
	}
	return os, nil
}
