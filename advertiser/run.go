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
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
	"github.com/directx-nri/directx-nri/ocispec/modes"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

const retryInterval = 2 * time.Second

// run is a run of the device plugin with one policy.
type run struct {
	*Daemon
	// policy has the modes and the injection of this node.
	policy policy.Resolved
	// configured is the injection of the configuration, which can be auto.
	configured policy.Injection
	source     discovery.Source
	files      gpuedits.Files // of the node
	recorder   *allocation.Recorder
}

// advertise runs the device plugin with the policy p until ctx ends, or returns [errNewRun]. It waits while the
// node has no GPU, and while its records cannot be used.
func (d *Daemon) advertise(ctx context.Context, p policy.Policy) (err error) {
	r := run{Daemon: d, configured: p.Injection, files: hostfiles.Root(d.options.HostRoot)}
	if err := d.retryUntilReady(ctx, func() error { return r.open(ctx, p) }); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.recorder.Close()) }()
	m := modes.Resolve(p, d.compiler.NodeOS, win32.WindowsBuild())
	d.log.WithFields(logrus.Fields{"mode": m.Assignment, "reason": m.AssignmentReason}).Info("Device assignment")
	d.log.WithFields(logrus.Fields{"mode": m.DriverFiles, "reason": m.DriverFilesReason}).Info("Driver files")
	d.metrics.SetNodeInfo(d.compiler.NodeOS, string(m.Assignment), string(m.DriverFiles), string(r.policy.Injection))

	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	config := r.pluginConfig()
	var plugin *deviceplugin.Plugin
	config.ListDevices = func(ctx context.Context) ([]discovery.Device, error) {
		devices, problem, err := r.listDevices(ctx)
		if errors.Is(err, errNewRun) {
			end(err)
		} else if err == nil {
			d.status.Store(&status{devicePlugin: plugin, problem: problem})
		}
		return devices, err
	}
	plugin = deviceplugin.New(ctx, config)
	d.status.Store(&status{devicePlugin: plugin})
	return cmp.Or(plugin.Run(ctx), context.Cause(ctx))
}

// open opens what a run with the policy p needs. The error matches [node.ErrNoSource] if the node has no GPU.
func (r *run) open(ctx context.Context, p policy.Policy) (err error) {
	if r.source, err = r.openSource(p); err != nil {
		return err
	}
	if p.Injection, _, err = r.resolveInjection(ctx, p.Injection); err != nil {
		return err
	}
	if p.Injection == policy.InjectByKubelet { // An earlier run may have made the diversion.
		if err := r.undoDiversion(ctx); err != nil {
			return err
		}
	}
	r.source, r.policy = modes.ResolvePolicy(r.source, p, r.compiler.NodeOS)
	r.recorder, err = allocation.OpenRecorder(ctx, paths.Allocations(r.compiler.StateDir), r.log)
	return err
}

// pluginConfig returns the configuration of the device plugin without ListDevices.
func (r *run) pluginConfig() deviceplugin.Config {
	c := deviceplugin.Config{
		Recorder: r.recorder, Policy: r.policy.Policy, KubeletDir: r.options.KubeletDir, Pods: r.pods, NodeOS: r.compiler.NodeOS,
		Metrics: r.metrics, Log: r.log, OnDevices: r.writeLabels,
		// On Linux, every kubelet allocates at admission. The shim is for Windows: with it on Linux, the end-to-end
		// suites test the order of Windows.
		AllocatesAtCreation: r.policy.Injection == policy.InjectByShim ||
			r.policy.Injection == policy.InjectByKubelet && r.compiler.NodeOS == "windows",
	}
	if r.policy.Injection == policy.InjectByKubelet {
		c.Inject = r.inject
		r.log.Warn("The kubelet gives containers their GPUs (injection: kubelet): there are no extra mounts and no GPUs for containers outside Kubernetes, " +
			"a restarted container has the driver files of its admission, and starts even if its GPU is gone; see docs/windows.md#kubelet-injection")
		if r.compiler.NodeOS == "windows" && r.policy.Assignment != policy.AssignByClass {
			r.log.Warn("A container can have one GPU: the kubelet passes on one device to containerd on Windows")
		}
	}
	if r.policy.Injection == policy.InjectByNRI {
		// The list does not depend on this: until the plugin runs again, PreStartContainer makes containers wait.
		c.CheckStart = func(ctx context.Context) error { return readiness.CheckPlugin(ctx, r.options.RuntimeDir) }
	}
	return c
}

// listDevices lists the GPUs of the node. While containers would not start with them, they are unhealthy, and
// problem is why. It returns an error if that is not known, as during a restart of containerd: what is advertised
// stays so. The error matches [errNewRun] if this run cannot go on. On Windows, it makes the diversion, and shares
// dxctl. Where no GPU is offered, nothing is checked, and nothing on the node changes.
func (r *run) listDevices(ctx context.Context) (devices []discovery.Device, problem, err error) {
	devices, err = r.source.Devices(ctx)
	if err != nil || !offersAny(devices, r.policy.Policy, r.compiler.NodeOS) {
		return devices, nil, err
	}
	problem = r.recorder.CheckWritable()
	if errors.Is(problem, allocation.ErrRemoved) {
		return nil, nil, fmt.Errorf("%w: %w", errNewRun, problem)
	}
	injection, containerd, err := r.resolveInjection(ctx, r.configured)
	if err != nil {
		return nil, nil, err
	}
	if injection != r.policy.Injection {
		return nil, nil, fmt.Errorf("%w: this version of containerd needs injection: %s", errNewRun, injection)
	}
	if injection == policy.InjectByShim {
		problem = cmp.Or(problem, containerd.Check(r.compiler.NodeOS))
		if problem == nil && r.options.Diversion != nil {
			problem = r.options.Diversion.Ensure(ctx)
		}
		// Only our shim, in its place, sees that containerd does not bypass it any longer.
		problem = cmp.Or(problem, shimfile.CheckBypass(r.compiler.StateDir))
	}
	r.shareDxctl(ctx)
	for i := range devices {
		if problem != nil && devices[i].Health.OK() {
			devices[i].Health.Reason = errlog.Text(problem)
		}
	}
	return devices, problem, nil
}

// openSource opens the source of the GPUs. The error matches [node.ErrNoSource] if the node has none.
func (d *Daemon) openSource(p policy.Policy) (discovery.Source, error) {
	return node.Open(node.Options{
		UseInventory: p.UseInventory, StateDir: d.compiler.StateDir, UUIDs: d.uuids, Save: true, HostRoot: d.options.HostRoot,
	})
}

// checkOffersGPU returns an error if no GPU of the node belongs to a resource.
func (d *Daemon) checkOffersGPU(ctx context.Context, p policy.Policy) error {
	source, err := d.openSource(p)
	if err != nil {
		return fmt.Errorf("%w; --inventory names one", err)
	}
	devices, err := source.Devices(ctx)
	if err == nil && !offersAny(devices, p, d.compiler.NodeOS) {
		err = errors.New("there is no GPU for any resource on this node")
	}
	if err != nil {
		return fmt.Errorf("%w, and failOnInitError is set", err)
	}
	return nil
}

// offersAny reports whether one of the devices belongs to a resource.
func offersAny(devices []discovery.Device, p policy.Policy, nodeOS string) bool {
	return slices.ContainsFunc(resources.Match(devices, p, nodeOS), func(d resources.Device) bool { return d.Rule != nil })
}

// retryUntilReady calls try until it succeeds or ctx ends. Until then, nothing is advertised. A node
// without a GPU is reported as ready, because it has nothing to advertise.
func (d *Daemon) retryUntilReady(ctx context.Context, try func() error) error {
	var lastErr errlog.LastError
	for {
		err := try()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		problem, level := err, logrus.ErrorLevel
		if errors.Is(err, node.ErrNoSource) {
			problem, level = nil, logrus.InfoLevel
			d.writeLabels(nil)
		}
		d.status.Store(&status{problem: problem})
		if lastErr.Changed(err) {
			d.log.WithError(err).Log(level, "No GPU is advertised, retrying")
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(retryInterval):
		}
	}
}
