package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
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

	mu sync.Mutex
	// device is the current run, nil if there is none because of problem.
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

// run advertises until ctx ends.
func (d *daemon) run(ctx context.Context) (err error) {
	defer func() {
		if d.recorder != nil {
			err = errors.Join(err, d.recorder.Close())
		}
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			err = nil
		}
	}()
	p, devices, err := d.load(ctx)
	if err != nil {
		return err
	}
	d.log.WithField("version", cli.Version(version)).Info("directx-advertiser starts")
	defer d.log.Info("directx-advertiser ends")
	for {
		err := d.serve(ctx, p, devices)
		var next *changed
		if !errors.As(err, &next) {
			return err
		}
		p, devices = next.policy, next.devices
		d.metrics.Reloaded(time.Now(), nil)
		d.log.WithField("config", d.compiler.File).Info("The configuration has changed and is in force")
	}
}

// load compiles the configuration. If it is invalid, or cannot be written, the policy
// of an earlier run stays in force. Without one load waits: the defaults could offer
// GPUs that the configuration excludes.
func (d *daemon) load(ctx context.Context) (policy.Policy, []discovery.Device, error) {
	p, devices, err := d.compiler.Compile()
	if flag := (*config.FlagError)(nil); errors.As(err, &flag) {
		return p, nil, cli.Usage("%w", flag)
	}
	if err == nil {
		err = config.Install(d.stateDir, p, devices)
	}
	d.report(err)
	if err == nil {
		return p, devices, nil
	}
	if _, missing := os.Lstat(policy.Path(d.stateDir)); missing == nil {
		if p, err = policy.Read(d.stateDir); err == nil && p.Inventory {
			devices, err = compiled.Open(d.stateDir).Devices(ctx)
		}
		if err == nil {
			return p, devices, nil
		}
		d.log.WithError(err).Error("Cannot use the last node policy")
	}
	return d.compiler.Watch(ctx, policy.Policy{}, nil, d.report)
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
		d.log.WithError(err).WithField("config", d.compiler.File).Error("The configuration cannot be used, and the last one stays in force; correct it, no restart is needed")
	}
}

// serve runs everything by one policy until ctx ends, or the configuration changes:
// the error is *changed then.
func (d *daemon) serve(ctx context.Context, p policy.Policy, devices []discovery.Device) error {
	if err := cli.ConfigureLog(d.log, p.Log.Level, p.Log.Format); err != nil {
		return err
	}
	server, err := d.metrics.Listen(ctx, "metrics.address", p.MetricsAddress, metrics.Health{Alive: d.checkAlive, Ready: d.checkReady}, d.log)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return server.Run(ctx) })
	group.Go(func() error { return d.advertise(ctx, p) })
	group.Go(func() error {
		next, nextDevices, err := d.compiler.Watch(ctx, p, devices, d.report)
		if err != nil {
			return nil // ctx has ended.
		}
		return &changed{next, nextDevices}
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
		Windows: d.nodeOS == "windows", Observer: d.metrics, Log: d.log,
		FailOnInitError: p.FailOnInitError && !d.started,
	}
	closeServer, err := d.setServer(&c, p, !assignment.Individual)
	if err != nil {
		return err
	}
	defer closeServer()
	for {
		device, err := advertiser.New(c)
		if err != nil {
			return err
		}
		d.setState(device, nil)
		d.started, c.FailOnInitError = true, false
		if err := device.Run(ctx); !errors.Is(err, advertiser.ErrRestart) {
			return err
		}
	}
}

// setServer completes c with the component that gives containers their GPUs. close
// must be called at the end.
func (d *daemon) setServer(c *advertiser.Config, p policy.Policy, byClass bool) (closeServer func(), err error) {
	closeServer = func() {}
	ready := func(context.Context) error { return nil }
	switch {
	case p.Injection == policy.InjectByKubelet:
		injector := newInjector(d, c, p, byClass)
		c.Inject, c.Ready = injector.Inject, injector.Ready
	case p.ServedBy == policy.ServedByShim:
		gate, err := newShimGate(d.criSocket)
		if err != nil {
			return nil, err
		}
		closeServer, ready = gate.Close, gate.Check
		c.Ready = func(ctx context.Context, _ advertiser.Start) error { return gate.Check(ctx) }
		c.Source = &gatedSource{Source: c.Source, check: gate.Check, log: d.log}
	default:
		ready = d.checkPlugin
		c.Ready = func(ctx context.Context, _ advertiser.Start) error { return d.checkPlugin(ctx) }
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ready = ready
	return closeServer, nil
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
		d.setState(nil, err)
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

func (d *daemon) setState(device *advertiser.Advertiser, problem error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.device, d.problem = device, problem
}

func (d *daemon) state() (*advertiser.Advertiser, func(context.Context) error, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.device, d.ready, d.problem
}

// checkAlive returns an error if the process hangs.
func (d *daemon) checkAlive(context.Context) error {
	if device, _, _ := d.state(); device != nil {
		return device.Alive()
	}
	return nil
}

// checkReady returns an error if containers cannot be given GPUs now.
func (d *daemon) checkReady(ctx context.Context) error {
	device, ready, problem := d.state()
	if device == nil {
		return problem
	}
	return errors.Join(device.Registered(), ready(ctx))
}

// node returns what the metrics report about the node.
func (d *daemon) node(ctx context.Context) (n metrics.Node) {
	device, _, _ := d.state()
	if device == nil {
		return n
	}
	status := device.Status()
	for _, s := range status.Devices {
		n.Devices = append(n.Devices, metrics.Device{Kind: cmp.Or(string(s.Kind), "none"), Healthy: s.Healthy})
	}
	held, err := d.kubelet.Held(ctx)
	for _, r := range status.Resources {
		inUse := map[string]int{}
		for _, id := range held[r.Name] {
			instanceID, _, _ := advertiser.ParseReplicaID(id)
			inUse[instanceID]++
		}
		names := map[string]int{}
		for _, g := range r.GPUs {
			names[g.LocationPath]++
		}
		resource := metrics.Resource{Name: r.Name, Registered: r.Registered}
		for _, g := range r.GPUs {
			gpu := metrics.GPU{Name: g.LocationPath, Replicas: g.Replicas}
			if g.LocationPath == "" || names[g.LocationPath] > 1 {
				gpu.Name = g.InstanceID
			}
			if n := inUse[g.InstanceID]; err == nil {
				gpu.InUse = &n
			}
			resource.GPUs = append(resource.GPUs, gpu)
		}
		n.Resources = append(n.Resources, resource)
	}
	return n
}

// checkPlugin returns an error if the NRI plugin cannot adjust containers now.
func (d *daemon) checkPlugin(ctx context.Context) error {
	if err := readiness.Check(ctx, filepath.Join(d.runtimeDir, readiness.SocketName)); err != nil {
		return fmt.Errorf("%w; is directx-nri running on this node, and is NRI enabled in containerd?", err)
	}
	return nil
}
