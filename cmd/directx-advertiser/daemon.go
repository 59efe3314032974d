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

	"directx-nri/advertiser"
	"directx-nri/discovery"
	"directx-nri/discovery/compiled"
	"directx-nri/discovery/node"
	"directx-nri/internal/allocation"
	"directx-nri/internal/capabilities"
	"directx-nri/internal/cli"
	"directx-nri/internal/config"
	"directx-nri/internal/metrics"
	"directx-nri/internal/paths"
	"directx-nri/internal/policy"
	"directx-nri/internal/readiness"
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
	refused string
	run     atomic.Pointer[run]
}

// run is the current state of the daemon.
type run struct {
	// device is nil if nothing can be offered because of problem.
	device  *advertiser.Advertiser
	problem error
	// ready checks that containers can be given GPUs.
	ready func(context.Context) error
}

// changed is the end of a run by a changed configuration.
type changed struct {
	policy  policy.Policy
	devices []discovery.Device
}

func (*changed) Error() string { return "the configuration has changed" }

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
	p, devices, problem := d.load(ctx)
	if flag := (*config.FlagError)(nil); errors.As(problem, &flag) {
		return cli.Usage("%w", flag)
	}
	d.log.WithField("version", cli.Version(version)).Info("directx-advertiser starts")
	defer d.log.Info("directx-advertiser ends")
	for {
		err := d.serve(ctx, p, devices, problem)
		var next *changed
		if !errors.As(err, &next) {
			return err
		}
		p, devices, problem = next.policy, next.devices, nil
		d.metrics.Reloaded(time.Now(), nil)
		d.log.WithField("config", d.compiler.File).Info("The configuration has changed and is in force")
	}
}

// load compiles the configuration. If it is invalid, or cannot be written, the policy
// of an earlier run stays in force. Without one the problem is returned with the policy
// of the flags, and no GPU can be offered: the defaults could offer GPUs that the
// configuration excludes.
func (d *daemon) load(ctx context.Context) (p policy.Policy, devices []discovery.Device, problem error) {
	p, devices, problem = d.compiler.Compile()
	if flag := (*config.FlagError)(nil); errors.As(problem, &flag) {
		return p, nil, problem
	}
	if problem == nil {
		problem = config.Install(d.stateDir, p, devices)
	}
	d.report(problem)
	if problem == nil {
		return p, devices, nil
	}
	if _, missing := os.Lstat(policy.Path(d.stateDir)); missing == nil {
		last, err := policy.Read(d.stateDir)
		if err == nil && last.Inventory {
			devices, err = compiled.Open(d.stateDir).Devices(ctx)
		}
		if err == nil {
			return last, devices, nil
		}
		d.log.WithError(err).Error("Cannot use the last node policy")
	}
	byFlags := d.compiler
	byFlags.File, byFlags.Required = "", false
	p, _, err := byFlags.Compile()
	if flag := (*config.FlagError)(nil); errors.As(err, &flag) {
		problem = err
	}
	return p, nil, problem
}

// report logs and counts the result of a compilation, if it differs from the last.
func (d *daemon) report(err error) {
	switch {
	case err == nil:
		d.refused = ""
		d.metrics.ConfigRead(time.Now())
	case err.Error() != d.refused:
		d.refused = err.Error()
		d.metrics.Reloaded(time.Now(), err)
		d.log.WithError(err).WithField("config", d.compiler.File).Error("The configuration cannot be used, and the last one, if any, stays in force; correct it, no restart is needed")
	}
}

// serve runs everything by one policy until ctx ends, or the configuration changes:
// the error is *changed then. With a problem it offers nothing.
func (d *daemon) serve(ctx context.Context, p policy.Policy, devices []discovery.Device, problem error) error {
	if err := cli.ConfigureLog(d.log, p.Log.Level, p.Log.Format); err != nil {
		return err
	}
	server, err := d.metrics.Listen(ctx, "metrics.address", p.MetricsAddress, metrics.Health{Alive: d.checkAlive, Ready: d.checkReady}, d.log)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return server.Run(ctx) })
	inForce := p
	if problem != nil {
		d.run.Store(&run{problem: problem})
		inForce = policy.Policy{}
	} else {
		group.Go(func() error { return d.advertise(ctx, p) })
	}
	group.Go(func() error {
		for ctx.Err() == nil {
			attempt, cancel := ctx, context.CancelFunc(func() {})
			if problem != nil {
				// The state directory can become writable, which is no change of a file.
				attempt, cancel = context.WithTimeout(ctx, retryInterval)
			}
			next, nextDevices, err := d.compiler.Watch(attempt, inForce, devices, d.report)
			cancel()
			if err == nil {
				return &changed{next, nextDevices}
			}
		}
		return nil
	})
	return group.Wait()
}

// advertise runs the device plugin until ctx ends.
func (d *daemon) advertise(ctx context.Context, p policy.Policy) error {
	if err := d.openRecorder(ctx); err != nil {
		return err
	}
	assignment := capabilities.Resolve(p.Assignment, d.nodeOS, capabilities.Ask)
	d.log.WithFields(logrus.Fields{"mode": assignment.Mode(), "reason": assignment.Reason}).Info("Device assignment")
	d.metrics.SetAssignment(string(assignment.Mode()), assignment.Reason)
	d.metrics.SetInjection(string(p.Injection))
	source, err := node.Open(node.Options{Inventory: p.Inventory, StateDir: d.stateDir, UUIDs: true, Log: d.log})
	if err != nil {
		return cli.Usage("%w, or --inventory", err)
	}
	c := advertiser.Config{
		Source:   discovery.ByClass(source, !assignment.Individual),
		Recorder: d.recorder, Resources: p.Resources, KubeletDir: d.kubeletDir, Pods: d.pods,
		NodeOS: d.nodeOS, Metrics: d.metrics, Log: d.log,
		FailOnInitError: p.FailOnInitError && !d.started,
	}
	ready := func(context.Context) error { return nil }
	switch {
	case p.Injection == policy.InjectByKubelet:
		injector := newInjector(d, &c, p, !assignment.Individual)
		c.Inject, c.Ready = injector.Inject, injector.Ready
	case p.ServedBy == policy.ServedByShim:
		gate, err := newShimGate(d.stateDir, d.criSocket)
		if err != nil {
			return err
		}
		defer gate.Close()
		ready = gate.Check
		c.Source = &gatedSource{Source: c.Source, check: gate.Check, log: d.log}
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

// openRecorder opens the allocation records, and waits while that is not possible.
func (d *daemon) openRecorder(ctx context.Context) error {
	last := ""
	for d.recorder == nil {
		recorder, err := allocation.OpenRecorder(ctx, paths.Allocations(d.stateDir), d.log)
		if err == nil {
			d.recorder = recorder
			break
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		d.run.Store(&run{problem: err})
		if err.Error() != last {
			last = err.Error()
			d.log.WithError(err).Error("Cannot use the allocation records, and no GPU is offered until that is possible")
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(retryInterval):
		}
	}
	return nil
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
	return errors.Join(now.device.Registered(), now.ready(ctx))
}

// node returns what the metrics report about the node.
func (d *daemon) node(ctx context.Context) metrics.Node {
	device := d.run.Load().device
	if device == nil {
		return metrics.Node{}
	}
	containers, err := d.kubelet.Containers(ctx)
	if err != nil {
		containers = nil
	}
	return device.Node(containers)
}

// checkPlugin returns an error if the NRI plugin cannot adjust containers now.
func (d *daemon) checkPlugin(ctx context.Context) error {
	if err := readiness.Check(ctx, filepath.Join(d.runtimeDir, readiness.SocketName)); err != nil {
		return fmt.Errorf("%w; is directx-nri running on this node, and is NRI enabled in containerd?", err)
	}
	return nil
}
