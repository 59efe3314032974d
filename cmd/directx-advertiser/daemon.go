package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"github.com/directx-nri/directx-nri/advertiser"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/compiled"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/capabilities"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/config"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/metrics"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/readiness"
)

// retryInterval is how often the state directory is tried again.
const retryInterval = 2 * time.Second

// daemon runs the advertiser, again and again: each run has one node policy.
type daemon struct {
	options
	compiler config.Compiler
	log      *logrus.Logger
	metrics  *metrics.Metrics
	kubelet  advertiser.PodResources
	pods     *advertiser.PodTracker
	// recorder is nil until the state directory can be used.
	recorder *allocation.Recorder
	// started reports that a run has begun, so that failOnInitError has been checked.
	started bool
	// refused is the configuration's last error.
	refused errlog.Last
	run     atomic.Pointer[run]
}

// run is the current state of the daemon.
type run struct {
	// device is nil if nothing can be advertised because of problem.
	device  *advertiser.Advertiser
	problem error
	// ready checks that containers can be given GPUs.
	ready func(context.Context) error
}

// configuration is what the daemon runs with. As an error it ends the run before it.
type configuration struct {
	policy  policy.Policy
	devices []discovery.Device
	// problem is why nothing can be advertised, nil if there is none.
	problem error
}

func (*configuration) Error() string { return "the configuration has changed" }

// main advertises until ctx ends.
func (d *daemon) main(ctx context.Context) (err error) {
	defer func() {
		if d.recorder != nil {
			err = errors.Join(err, d.recorder.Close())
		}
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			err = nil
		}
	}()
	c, err := d.load(ctx)
	if err != nil {
		return cli.Usage("%w", err)
	}
	d.log.WithField("version", cli.Version(version)).Info("Starting directx-advertiser")
	defer d.log.Info("Stopped directx-advertiser")
	for {
		if err := d.serve(ctx, c); !errors.As(err, &c) {
			return err
		}
		d.metrics.Reloaded(time.Now(), nil)
		d.log.WithField("config", d.compiler.File).Info("The configuration has changed and is in force")
	}
}

// load compiles the configuration. If it is invalid, or cannot be written, the policy
// of an earlier run stays in force. Without one it returns the problem, with the policy
// of the flags: the defaults could advertise GPUs that the configuration excludes. Its own
// error is one of the flags.
func (d *daemon) load(ctx context.Context) (*configuration, error) {
	var flag *config.FlagError
	p, devices, problem := d.compiler.Compile()
	if errors.As(problem, &flag) {
		return nil, flag
	}
	if problem == nil {
		problem = config.Install(d.stateDir, p, devices)
	}
	d.report(problem)
	if problem == nil {
		return &configuration{policy: p, devices: devices}, nil
	}
	if _, missing := os.Lstat(policy.Path(d.stateDir)); missing == nil {
		last, err := policy.Read(d.stateDir)
		if err == nil && last.Inventory {
			devices, err = compiled.Open(d.stateDir).Devices(ctx)
		}
		if err == nil {
			last.Source.Config = "" // It was not compiled from the present files and flags.
			return &configuration{policy: last, devices: devices}, nil
		}
		d.log.WithError(err).Error("Cannot use the last node policy")
	}
	byFlags := d.compiler
	byFlags.File, byFlags.Required, byFlags.CheckRuntime = "", false, nil
	p, _, err := byFlags.Compile()
	if errors.As(err, &flag) {
		return nil, flag
	}
	return &configuration{policy: p, problem: problem}, nil
}

// report logs and counts the result of a compilation, if it differs from the last.
func (d *daemon) report(err error) {
	switch differs := d.refused.Replace(err); {
	case err == nil:
		d.metrics.ConfigRead(time.Now())
	case differs:
		d.metrics.Reloaded(time.Now(), err)
		d.log.WithError(err).WithField("config", d.compiler.File).Error("Cannot use the configuration; correct it, no restart is needed")
	}
}

// serve runs everything by c until ctx ends, or the configuration changes: the error is
// the new one then. With a problem it advertises nothing.
func (d *daemon) serve(ctx context.Context, c *configuration) error {
	if err := cli.ConfigureLog(d.log, c.policy.Log.Level, c.policy.Log.Format); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return d.metrics.Serve(ctx, "metrics.address", c.policy.MetricsAddress, metrics.Health{Alive: d.checkAlive, Ready: d.checkReady}, d.log)
	})
	if c.problem == nil {
		group.Go(func() error { return d.advertise(ctx, c.policy) })
		group.Go(func() error { return d.watch(ctx, c) })
		return group.Wait()
	}
	d.run.Store(&run{problem: c.problem})
	group.Go(func() error {
		// That the state directory becomes writable is no change of a file.
		for ctx.Err() == nil {
			attempt, cancel := context.WithTimeout(ctx, retryInterval)
			err := d.watch(attempt, &configuration{})
			cancel()
			if err != nil {
				return err
			}
		}
		return nil
	})
	return group.Wait()
}

// watch returns the configuration that follows c, or nil if ctx ends.
func (d *daemon) watch(ctx context.Context, c *configuration) error {
	next, devices, err := d.compiler.Watch(ctx, c.policy, c.devices, d.report)
	if err != nil {
		return nil //nolint:nilerr // ctx has ended.
	}
	return &configuration{policy: next, devices: devices}
}

// advertise runs the device plugin until ctx ends.
func (d *daemon) advertise(ctx context.Context, p policy.Policy) error {
	if err := d.awaitSetup(ctx); err != nil {
		return err
	}
	if err := d.openRecorder(ctx); err != nil {
		return err
	}
	modes := capabilities.Resolve(p, d.nodeOS, capabilities.Build())
	p = modes.InForce(p)
	d.log.WithFields(logrus.Fields{"mode": modes.Assignment, "reason": modes.Reason}).Info("Device assignment")
	d.log.WithFields(logrus.Fields{"mode": modes.DriverFiles, "reason": modes.DriverFilesReason}).Info("Driver files")
	d.metrics.Assignment.Reset()
	d.metrics.Assignment.WithLabelValues(string(modes.Assignment), modes.Reason).Set(1)
	d.metrics.DriverFiles.Reset()
	d.metrics.DriverFiles.WithLabelValues(string(modes.DriverFiles), modes.DriverFilesReason).Set(1)
	d.metrics.Injection.Reset()
	d.metrics.Injection.WithLabelValues(string(p.Injection)).Set(1)
	source, err := d.openSource(ctx, p)
	if err != nil {
		return err
	}
	c := advertiser.Config{
		Source:   discovery.ByClass(source, p.ByClass()),
		Recorder: d.recorder, Resources: p.Resources, KubeletDir: d.kubeletDir, Pods: d.pods,
		NodeOS: d.nodeOS, Metrics: d.metrics, Log: d.log,
		AtCreation:      d.allocateAt == atCreation || d.allocateAt == "" && d.nodeOS == "windows",
		FailOnInitError: p.FailOnInitError && !d.started,
	}
	ready := func(context.Context) error { return nil }
	conditional := &conditionalSource{Source: c.Source, check: d.recorder.CheckWritable, log: d.log}
	c.Source = conditional
	switch {
	case p.Injection == policy.InjectByKubelet:
		injector := newInjector(d, &c, p)
		c.Inject = injector.Inject
		if !c.AtCreation {
			c.Ready = injector.Ready
		}
	case p.ServedBy == policy.ServedByShim:
		checker := &shimChecker{stateDir: d.stateDir, criSocket: d.criSocket, now: time.Now}
		ready = checker.Check
		conditional.check = func(ctx context.Context) error { return errors.Join(d.recorder.CheckWritable(ctx), checker.Check(ctx)) }
		if c.AtCreation {
			c.Ready = conditional.Ready
		}
	default:
		ready = d.checkPlugin
	}
	if c.Ready == nil {
		c.Ready = func(ctx context.Context, _ string, _ []string) error { return ready(ctx) }
	}
	for {
		device := advertiser.New(c)
		d.run.Store(&run{device: device, ready: ready})
		d.started, c.FailOnInitError = true, false
		if err := device.Run(ctx); !errors.Is(err, advertiser.ErrRestart) {
			return err
		}
	}
}

// openSource opens the source of the GPUs, and waits while the node has none.
func (d *daemon) openSource(ctx context.Context, p policy.Policy) (source discovery.Source, err error) {
	open := func() (err error) {
		source, err = node.Open(node.Options{Inventory: p.Inventory, StateDir: d.stateDir, Record: true, UUIDs: true, HostRoot: d.hostRoot, Log: d.log})
		return err
	}
	if p.FailOnInitError && !d.started {
		if err := open(); err != nil {
			return nil, cli.Usage("%w; --inventory names one", err)
		}
		return source, nil
	}
	err = d.retry(ctx, logrus.InfoLevel, "No GPU is advertised", open)
	return source, err
}

// openRecorder opens the allocation records, and waits while that is not possible.
func (d *daemon) openRecorder(ctx context.Context) error {
	if d.recorder != nil {
		return nil
	}
	return d.retry(ctx, logrus.ErrorLevel, "Cannot use the allocation records, and no GPU is advertised until that is possible", func() (err error) {
		d.recorder, err = allocation.OpenRecorder(ctx, paths.Allocations(d.stateDir), d.log)
		return err
	})
}

// awaitSetup waits until the node is set up, if there is a file that reports it. A node
// without a GPU is ready: it has nothing to advertise.
func (d *daemon) awaitSetup(ctx context.Context) error {
	if d.setupFile == "" {
		return nil
	}
	return d.retry(ctx, logrus.InfoLevel, "No GPU is advertised", func() error { return readiness.CheckSetup(d.setupFile) })
}

// retry calls try until it succeeds or ctx ends. Meanwhile nothing is advertised.
func (d *daemon) retry(ctx context.Context, level logrus.Level, message string, try func() error) error {
	var last errlog.Last
	for {
		err := try()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		problem := err
		if errors.Is(err, readiness.ErrNoGPU) || errors.Is(err, node.ErrNoInventory) {
			problem = nil // It has nothing to advertise.
		}
		d.run.Store(&run{problem: problem})
		if last.Replace(err) {
			d.log.WithError(err).Log(level, message)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(retryInterval):
		}
	}
}

// checkAlive returns an error if the process hangs.
func (d *daemon) checkAlive(context.Context) error {
	if device := d.run.Load().device; device != nil {
		return device.Alive()
	}
	return nil
}

// checkReady returns an error if containers cannot be given GPUs now.
func (d *daemon) checkReady(ctx context.Context) error {
	now := d.run.Load()
	if now.device == nil {
		return now.problem
	}
	return errors.Join(now.device.Registered(), now.ready(ctx), d.recorder.CheckWritable(ctx))
}

// reportNode sets the metrics of the node.
func (d *daemon) reportNode(ctx context.Context, n metrics.Node) {
	if device := d.run.Load().device; device != nil {
		var containers []advertiser.ContainerDevices // nil if they are unknown
		if !device.Allocating() {
			containers, _ = d.kubelet.Containers(ctx)
		}
		device.Report(n, containers)
	}
}

// checkPlugin returns an error if the NRI plugin cannot adjust containers now.
func (d *daemon) checkPlugin(ctx context.Context) error {
	if err := readiness.Check(ctx, filepath.Join(d.runtimeDir, readiness.SocketName)); err != nil {
		return fmt.Errorf("%w; is directx-nri running on this node, and is NRI enabled in containerd?", err)
	}
	return nil
}
