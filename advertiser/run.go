package advertiser

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/advertiser/deviceplugin"
	"github.com/directx-nri/directx-nri/advertiser/resources"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/readiness"
	"github.com/directx-nri/directx-nri/internal/win32"
	"github.com/directx-nri/directx-nri/ocispec/modes"
	"github.com/directx-nri/directx-nri/shim/shimcheck"
)

const retryInterval = 2 * time.Second

// noGPUMessage is the log message while the advertiser waits.
const noGPUMessage = "No GPU is advertised"

// advertise runs the device plugin with the policy p until ctx ends. It waits while the node has no GPU, while
// its records cannot be used, and while it has no records and is not set up.
func (d *Daemon) advertise(ctx context.Context, p policy.Policy) error {
	p.FailOnInitError = p.FailOnInitError && !d.hasAdvertised
	err := d.retryUntilReady(ctx, logrus.InfoLevel, noGPUMessage, func() error {
		err := d.checkSetup()
		if errors.Is(err, errNotSetUp) {
			records, _, _ := allocation.OpenStore(paths.Allocations(d.compiler.StateDir)).List(ctx)
			if len(records) > 0 {
				return nil // Containers hold replicas, and the kubelet forgets a resource that has no plugin.
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	const recordsMessage = "No GPU is advertised until the allocation records can be used"
	err = d.retryUntilReady(ctx, logrus.ErrorLevel, recordsMessage, func() (err error) {
		if d.recorder == nil {
			d.recorder, err = allocation.OpenRecorder(ctx, paths.Allocations(d.compiler.StateDir), d.log)
		}
		return err
	})
	if err != nil {
		return err
	}
	d.reportModes(p)
	source, err := d.openSource(ctx, p)
	if err != nil {
		return err
	}
	source, resolved := modes.ResolvePolicy(source, p, d.compiler.NodeOS)
	c := d.pluginConfig(resolved, source)
	for {
		plugin := deviceplugin.New(c)
		d.status.Store(&status{devicePlugin: plugin})
		d.hasAdvertised = true
		if err := plugin.Run(ctx); !errors.Is(err, deviceplugin.ErrRestart) {
			return err
		}
	}
}

// checkSetup returns an error until 'dxctl runtime setup' has set up the node. Then, and without a setup file, it
// returns nil.
func (d *Daemon) checkSetup() error {
	if d.options.SetupFile == "" || d.isSetUp.Load() {
		return nil
	}
	err := checkSetupFile(d.options.SetupFile)
	if err == nil {
		d.isSetUp.Store(true) // What a later run of setup reports is no reason to stop.
	}
	return err
}

// reportModes reports the modes that are in force on this node with the policy p.
func (d *Daemon) reportModes(p policy.Policy) {
	m := modes.Resolve(p, d.compiler.NodeOS, win32.WindowsBuild())
	d.log.WithFields(logrus.Fields{"mode": m.Assignment, "reason": m.AssignmentReason}).Info("Device assignment")
	d.log.WithFields(logrus.Fields{"mode": m.DriverFiles, "reason": m.DriverFilesReason}).Info("Driver files")
	d.metrics.Assignment.Reset()
	d.metrics.Assignment.WithLabelValues(string(m.Assignment), m.AssignmentReason).Set(1)
	d.metrics.DriverFiles.Reset()
	d.metrics.DriverFiles.WithLabelValues(string(m.DriverFiles), m.DriverFilesReason).Set(1)
	d.metrics.Injection.Reset()
	d.metrics.Injection.WithLabelValues(string(p.Injection)).Set(1)
}

// pluginConfig returns the configuration of the device plugin. It depends on what gives containers their
// GPUs: the kubelet, the runtime shim or the NRI plugin.
func (d *Daemon) pluginConfig(p policy.Resolved, source discovery.Source) deviceplugin.Config {
	c := deviceplugin.Config{
		Recorder: d.recorder, Policy: p.Policy, KubeletDir: d.options.KubeletDir, Pods: d.pods, NodeOS: d.compiler.NodeOS,
		Metrics: d.metrics, Log: d.log, AllocatesAtCreation: d.options.AllocatesAtCreation, OnDevices: d.writeLabels,
	}
	check := d.recorder.EnsureWritable
	switch p.Injection {
	case policy.InjectByKubelet:
		c.CheckInjection = func(context.Context) error { return nil }
		c.KubeletAnswer = d.newKubeletInjection(p, source).answer
	case policy.InjectByShim:
		c.CheckInjection = func(ctx context.Context) error {
			return shimcheck.Check(ctx, d.compiler.StateDir, d.options.CRISocket.String())
		}
		check = func(ctx context.Context) error {
			return errors.Join(d.recorder.EnsureWritable(ctx), c.CheckInjection(ctx))
		}
	case policy.InjectByNRI:
		// check does not include this: until the plugin runs again, PreStartContainer makes containers wait.
		c.CheckInjection = func(ctx context.Context) error { return readiness.CheckPlugin(ctx, d.options.RuntimeDir) }
	}
	checkAll := func(ctx context.Context) error {
		err := d.checkSetup()
		if errors.Is(err, errNoGPU) {
			d.writeLabels(nil)
		}
		return errors.Join(err, check(ctx))
	}
	c.ListDevices = (&checkedList{list: source.Devices, check: checkAll, log: d.log, problem: errNeverPassed}).devices
	return c
}

func (d *Daemon) newKubeletInjection(p policy.Resolved, source discovery.Source) *kubeletInjection {
	d.log.Warn("The kubelet gives containers their GPUs (injection: kubelet): there are no extra mounts and no GPUs for containers outside Kubernetes, " +
		"a restarted container has the driver files of its admission, and starts even if its GPU is gone; see docs/kubelet-injection.md")
	if d.compiler.NodeOS == "windows" && !p.AssignsByClass() {
		d.log.Warn("A container can have one GPU: the kubelet passes on one device to containerd on Windows")
	}
	return &kubeletInjection{
		source: source, files: hostfiles.Root(d.options.HostRoot), os: d.compiler.NodeOS, policy: p, log: d.log,
	}
}

// openSource opens the source of the GPUs, and waits while the node has none.
func (d *Daemon) openSource(ctx context.Context, p policy.Policy) (source discovery.Source, err error) {
	options := node.Options{
		UseInventory: p.UseInventory, StateDir: d.compiler.StateDir, QueryDriver: true, HostRoot: d.options.HostRoot, Log: d.log,
	}
	if p.FailOnInitError {
		if err := d.checkOffersGPU(ctx, p, options); err != nil {
			d.writeLabels(nil)
			return nil, err
		}
	}
	options.UUIDs, options.Save = d.uuids, true
	err = d.retryUntilReady(ctx, logrus.InfoLevel, noGPUMessage, func() (err error) {
		source, err = node.Open(options)
		return err
	})
	return source, err
}

// checkOffersGPU returns an error if no GPU of the node belongs to a resource.
func (d *Daemon) checkOffersGPU(ctx context.Context, p policy.Policy, options node.Options) error {
	source, err := node.Open(options)
	if err != nil {
		return fmt.Errorf("%w; --inventory names one", err)
	}
	devices, err := source.Devices(ctx)
	if err != nil {
		return fmt.Errorf("%w, and failOnInitError is set", err)
	}
	if !slices.ContainsFunc(resources.Match(devices, p, d.compiler.NodeOS), func(d resources.Device) bool { return d.Rule != nil }) {
		return errors.New("there is no GPU for any resource on this node, and failOnInitError is set")
	}
	return nil
}

// retryUntilReady calls try until it succeeds or ctx ends. Until then, nothing is advertised. A node
// without a GPU is reported as ready, because it has nothing to advertise.
func (d *Daemon) retryUntilReady(ctx context.Context, level logrus.Level, message string, try func() error) error {
	var lastErr errlog.LastError
	for {
		err := try()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		problem := err
		if errors.Is(err, errNoGPU) || errors.Is(err, node.ErrNoSource) {
			problem = nil
			d.writeLabels(nil)
		}
		d.status.Store(&status{problem: problem})
		if lastErr.Changed(err) {
			d.log.WithError(err).Log(level, message)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(retryInterval):
		}
	}
}

// checkedList lists GPUs, as unhealthy while containers would not start with them.
type checkedList struct {
	list func(context.Context) ([]discovery.Device, error)
	// check returns an error if containers would not start with GPUs, or if that is unknown, as during
	// a restart of containerd.
	check func(context.Context) error
	log   logrus.FieldLogger

	// problem is errNeverPassed until check passes for the first time, and then the last definite result:
	// why GPUs are unhealthy, nil if they are not. Only devices uses it, which one goroutine calls.
	problem error
}

var errNeverPassed = errors.New("the check has never passed")

// devices returns the list. Until the check has passed once, it returns the error of the check. While
// the result is unknown, the last definite result applies.
func (c *checkedList) devices(ctx context.Context) ([]discovery.Device, error) {
	checkErr := c.check(ctx)
	switch {
	case checkErr == nil:
		if c.problem != nil {
			c.log.Info("Advertising GPUs")
		}
		c.problem = nil
	case errors.Is(c.problem, errNeverPassed):
		return nil, fmt.Errorf("containers would not start with a GPU: %w", checkErr)
	case shimcheck.IsDefinite(checkErr) || errors.Is(checkErr, allocation.ErrNotWritable):
		if c.problem == nil {
			c.log.WithError(checkErr).Error("Stopped advertising GPUs: containers cannot start with them")
		}
		c.problem = checkErr
	}
	devices, err := c.list(ctx)
	problem := c.problem
	if errors.Is(err, node.ErrNotSaved) {
		problem, err = cmp.Or(problem, err), nil
	}
	for i := range devices {
		if problem != nil && devices[i].Health.OK() {
			devices[i].Health.Reason = errlog.ErrorLine(problem)
		}
	}
	return devices, err
}
