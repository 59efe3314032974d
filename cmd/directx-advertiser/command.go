package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"directx-nri/advertiser"
	"directx-nri/discovery/live"
	"directx-nri/internal/allocation"
	"directx-nri/internal/cli"
	"directx-nri/internal/paths"
	"directx-nri/internal/readiness"
	"directx-nri/nri"
	"directx-nri/ocispec"
)

type options struct {
	logging         cli.Logging
	inventory       string
	replicas        int
	kubeletDir      string
	podResources    string
	stateDir        string
	runtimeDir      string
	guardSocket     string
	servedBy        string
	criSocket       string
	failOnInitError bool
}

func newCommand() *cobra.Command {
	var o options
	places := paths.OfThisSystem()
	command := &cobra.Command{
		Use:   "directx-advertiser",
		Short: "Offer this node's GPUs to the kubelet and record what it hands out",
		Long: `directx-advertiser is a Kubernetes device plugin for two resources:

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
may be restarted at any time.`,
		Example: `  # four containers may share each GPU of the inventory file
  directx-advertiser --inventory /etc/directx-nri/inventory.yaml --replicas 4

  # containerd starts containers by our runtime shim
  directx-advertiser --inventory /etc/directx-nri/inventory.yaml --served-by shim

  # Windows: the GPUs that the node has
  directx-advertiser --replicas 4`,
		Version: cli.Version(version),
	}
	command.RunE = o.logging.Run(o.run)
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&o.inventory, "inventory", "", "inventory file that describes this node's GPUs; on Windows \"\" finds them")
	flags.IntVar(&o.replicas, "replicas", 1, "how many containers may share a GPU, 1 to 1024")
	flags.BoolVar(&o.failOnInitError, "fail-on-init-error", false, "end with an error when there is no GPU at the start, instead of waiting for one")
	flags.StringVar(&o.stateDir, "state-dir", places.State, "folder of the allocation records; the same as the plugin's")
	flags.StringVar(&o.runtimeDir, "runtime-dir", places.Runtime, "folder of the socket by which the plugin is seen to be there; the same as the plugin's")
	flags.StringVar(&o.kubeletDir, "kubelet-dir", places.DevicePlugins, "the kubelet's folder for device plugins")
	flags.StringVar(&o.podResources, "pod-resources-socket", places.PodResources, "the kubelet's PodResources socket or named pipe, to see which pods hold GPUs")
	flags.StringVar(&o.guardSocket, "nri-socket", places.NRI, "with --served-by nri: containerd's NRI socket, to refuse the start of containers whose GPU the plugin could not add; \"\" does without that guard")
	flags.StringVar(&o.servedBy, "served-by", servedByDefault(runtime.GOOS), "who gives containers their GPUs: nri, the plugin, or shim, the runtime shim")
	flags.StringVar(&o.criSocket, "cri-socket", places.CRI, "with --served-by shim: containerd's CRI socket, to see that it starts containers by the shim")
	o.logging.AddFlags(flags)
	return command
}

var errNoGuard = errors.New("the advertiser is not connected to the container runtime's NRI socket")

func (o *options) run(ctx context.Context, log *logrus.Logger) (err error) {
	source, err := live.Open(o.inventory, log)
	if err != nil {
		return cli.Usage("--inventory is required: %w", err)
	}
	if err := advertiser.CheckReplicas(o.replicas); err != nil {
		return cli.Usage("--replicas: %w", err)
	}
	if o.servedBy != servedByNRI && o.servedBy != servedByShim {
		return cli.Usage("--served-by %q is neither %s nor %s", o.servedBy, servedByNRI, servedByShim)
	}
	recorder, err := allocation.OpenRecorder(ctx, paths.Allocations(o.stateDir), log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, recorder.Close()) }()
	var guarding atomic.Bool
	ready := o.pluginReady(&guarding)
	if o.servedBy == servedByShim {
		gate, err := newShimGate(o.criSocket, o.podResources)
		if err != nil {
			return err
		}
		defer gate.Close()
		source, ready = &gatedSource{Source: source, gate: gate.Routes, log: log}, gate.Ready
	}
	device, err := advertiser.New(advertiser.Config{
		Source:          source,
		Recorder:        recorder,
		Replicas:        o.replicas,
		KubeletDir:      o.kubeletDir,
		Ready:           ready,
		Pods:            advertiser.PodResourcesPods(o.podResources),
		FailOnInitError: o.failOnInitError,
		Log:             log,
	})
	if err != nil {
		return err
	}

	log.WithField("version", cli.Version(version)).Info("directx-advertiser starts")
	defer log.Info("directx-advertiser ends")
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return device.Run(ctx) })
	if o.servedBy == servedByNRI && o.guardSocket != "" {
		group.Go(func() error { return o.guard(log, guarding.Store).Run(ctx) })
	}
	return group.Wait()
}

// pluginReady returns the check that the NRI plugin is there, and its guard.
func (o *options) pluginReady(guarding *atomic.Bool) func(context.Context, advertiser.Start) error {
	return func(ctx context.Context, _ advertiser.Start) error {
		if err := readiness.Check(ctx, filepath.Join(o.runtimeDir, readiness.SocketName)); err != nil {
			return fmt.Errorf("%w; is directx-nri running on this node, and is NRI enabled in containerd?", err)
		}
		if o.guardSocket != "" && !guarding.Load() {
			return fmt.Errorf("%w %s, which this program needs to guard container starts; is NRI enabled in containerd?", errNoGuard, o.guardSocket)
		}
		return nil
	}
}

// guard returns the NRI plugin that refuses containers which directx-nri did
// not adjust. It runs here because it must not share a fate with directx-nri:
// containerd drops a plugin that does not answer and starts the container
// without it, and then there must be another one that says no.
func (o *options) guard(log *logrus.Logger, serving func(bool)) *nri.Runner {
	return &nri.Runner{
		Socket: o.guardSocket, Name: "directx-guard", Index: "99",
		Hooks: nri.NewGuard(ocispec.OS(runtime.GOOS)).Hooks, Serving: serving, Log: log,
	}
}
