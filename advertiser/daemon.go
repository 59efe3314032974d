package advertiser

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/advertiser/deviceplugin"
	"github.com/directx-nri/directx-nri/advertiser/nodelabels"
	"github.com/directx-nri/directx-nri/advertiser/resources"
	"github.com/directx-nri/directx-nri/discovery/nvidia"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/bounded"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/metrics"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/shim/diversion"
)

// Options are the flags that have no key in config.yaml. The compiler has more of them.
type Options struct {
	// For these, see the flags of the same names: --runtime-dir, --host-root and so on.
	RuntimeDir, HostRoot, KubeletDir, PodResources, LabelsFile string
	CRISocket                                                  string
	// Diversion is nil where containerd's shim stays in its place: on Linux.
	Diversion *diversion.Keeper
	// Dxctl is the path of the dxctl of which pods get a copy, "" on Linux.
	Dxctl string
}

// Daemon runs the device plugin. Each run has one configuration.
type Daemon struct {
	options  Options
	compiler config.Compiler
	version  string
	log      *logrus.Logger
	metrics  *metrics.Metrics
	pods     *deviceplugin.PodTracker
	uuids    *nvidia.UUIDs // kept for all runs: allocations at once have them
	// lastCompileErr is the last error of compiling the configuration, lastLabelErr that of writing
	// the file of labels.
	lastCompileErr, lastLabelErr errlog.LastError
	status                       atomic.Pointer[status]
	triedDxctl                   bool // whether shareDxctl has run
}

// New returns the daemon of a program's version that compiles its configuration with compiler.
func New(options Options, compiler config.Compiler, version string, log *logrus.Logger) *Daemon {
	d := &Daemon{
		options: options, compiler: compiler, version: version, log: log,
		metrics: metrics.New("directx-advertiser", version),
		pods:    deviceplugin.NewPodTracker(options.PodResources),
		uuids:   nvidia.NewUUIDs(options.HostRoot),
	}
	d.status.Store(&status{problem: errors.New("the advertiser is starting")})
	d.metrics.CollectNode(d.reportNode)
	return d
}

// Run advertises until ctx ends.
func (d *Daemon) Run(ctx context.Context) (err error) {
	repairCtx, endRepairs := context.WithCancel(ctx)
	var repairs sync.WaitGroup
	repairs.Go(func() { d.repairDiversion(repairCtx) })
	defer endRepairs()
	c := d.initialConfiguration()
	c.Policy.Log.Configure(d.log)
	d.log.WithField("version", d.version).Info("Starting directx-advertiser")
	defer d.log.Info("Stopped directx-advertiser")
	if c.problem == nil && c.Policy.FailOnInitError {
		err = d.checkOffersGPU(ctx, c.Policy)
	}
	for c != nil && err == nil {
		c, err = d.serve(ctx, c)
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil // What follows can fail.
	}
	endRepairs()
	repairs.Wait()
	err = errors.Join(err, d.undoDiversion(context.WithoutCancel(ctx)))
	if removeErr := durable.Remove(filepath.Join(d.compiler.StateDir, paths.DxctlFile)); removeErr != nil { // A pod may run it.
		d.log.WithError(removeErr).Warn("The copy of dxctl for pods stays")
	}
	// Nothing else would remove the file when directx-nri is removed.
	return errors.Join(err, durable.Remove(d.options.LabelsFile))
}

// errNewRun ends the goroutines of a run when the next configuration, another containerd or the loss of the
// records needs a new one.
var errNewRun = errors.New("a new run is needed")

// serve runs everything with the configuration c until a change needs a new run. It returns the next
// configuration, or nil when ctx ends.
func (d *Daemon) serve(ctx context.Context, c *configuration) (next *configuration, err error) {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return d.metrics.Serve(ctx, c.Policy.Metrics.Address,
			metrics.Health{Alive: d.checkAlive, Ready: d.checkReady}, d.log)
	})
	if c.problem == nil {
		group.Go(func() error { return d.advertise(ctx, c.Policy) })
	} else {
		d.status.Store(&status{problem: c.problem})
		d.writeLabels(nil)
	}
	group.Go(func() error {
		if next = d.waitForNewRun(ctx, c); next != nil {
			return errNewRun
		}
		return nil
	})
	if err := group.Wait(); !errors.Is(err, errNewRun) {
		return nil, err
	}
	if next == nil {
		d.log.WithError(err).Warn("Advertising again")
	}
	return cmp.Or(next, c), nil
}

// writeLabels writes the file of labels, if there is one.
func (d *Daemon) writeLabels(devices []resources.Device) {
	if d.options.LabelsFile != "" {
		err := nodelabels.Write(d.options.LabelsFile, nodelabels.ForDevices(devices))
		d.lastLabelErr.Log(d.log, err, "Cannot write the labels of this node", "The labels of this node are written again")
	}
}

// shareDxctl copies dxctl, once, to where pods of other images can mount it: ours has no Windows. An error is only logged.
func (d *Daemon) shareDxctl(ctx context.Context) {
	if d.options.Dxctl == "" || d.triedDxctl {
		return
	}
	d.triedDxctl = true
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // A disk can hang.
	defer cancel()
	_, err := bounded.Call(ctx, func(context.Context) ([]byte, error) {
		shared := filepath.Join(d.compiler.StateDir, paths.DxctlFile)
		data, err := os.ReadFile(d.options.Dxctl)
		if err == nil {
			err = access.MakePrivate(filepath.Dir(shared))
		}
		if err == nil {
			err = durable.Update(shared, data, 0o700)
		}
		return data, err
	})
	if err != nil {
		d.log.WithError(err).Warn("Pods cannot mount dxctl, which 'helm test' and the example probe do")
	}
}

// status is what the daemon does now, for its health and metrics.
type status struct {
	// devicePlugin is nil if nothing can be advertised. problem is the reason, or nil if the node
	// has no GPU. With a device plugin, problem is why no container can start with a GPU, or nil.
	devicePlugin *deviceplugin.Plugin
	problem      error
}

func (d *Daemon) checkAlive() error {
	if plugin := d.status.Load().devicePlugin; plugin != nil {
		return plugin.CheckAlive()
	}
	return nil
}

func (d *Daemon) checkReady(ctx context.Context) error {
	s := d.status.Load()
	if s.devicePlugin == nil || s.problem != nil {
		return s.problem
	}
	return s.devicePlugin.CheckReady(ctx)
}

func (d *Daemon) reportNode(n metrics.NodeMetrics) {
	if plugin := d.status.Load().devicePlugin; plugin != nil {
		plugin.Report(n)
	}
}
