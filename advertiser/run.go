package advertiser

import (
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
)

const retryInterval = 2 * time.Second

// noGPUMessage is the log message while the advertiser waits.
const noGPUMessage = "No GPU is advertised"

// advertise runs the device plugin with the policy p until ctx ends. It waits while the node has no GPU, and
// while its records cannot be used.
func (d *Daemon) advertise(ctx context.Context, p policy.Policy) error {
	p.FailOnInitError = p.FailOnInitError && !d.hasAdvertised
	const recordsMessage = "No GPU is advertised until the allocation records can be used"
	err := d.retryUntilReady(ctx, logrus.ErrorLevel, recordsMessage, func() (err error) {
		if d.recorder == nil {
			d.recorder, err = allocation.OpenRecorder(ctx, paths.Allocations(d.compiler.StateDir), d.log)
		}
		return err
	})
	if err != nil {
		return err
	}
	source, err := d.openSource(ctx, p)
	if err != nil {
		return err
	}
	if p, err = d.withInjection(ctx, p); err != nil {
		return err
	}
	if p.Injection == policy.InjectByKubelet { // An earlier run may have made it.
		if err := d.undoDiversion(ctx); err != nil {
			d.log.WithError(err).Error("Cannot move containerd's shim back")
		}
	}
	d.reportModes(p)
	source, resolved := modes.ResolvePolicy(source, p, d.compiler.NodeOS)
	plugin := deviceplugin.New(ctx, d.pluginConfig(resolved, source))
	d.status.Store(&status{devicePlugin: plugin})
	d.hasAdvertised = true
	return plugin.Run(ctx)
}

// reportModes reports the modes that are in force on this node with the policy p.
func (d *Daemon) reportModes(p policy.Policy) {
	m := modes.Resolve(p, d.compiler.NodeOS, win32.WindowsBuild())
	d.log.WithFields(logrus.Fields{"mode": m.Assignment, "reason": m.AssignmentReason}).Info("Device assignment")
	d.log.WithFields(logrus.Fields{"mode": m.DriverFiles, "reason": m.DriverFilesReason}).Info("Driver files")
	d.metrics.SetNodeInfo(d.compiler.NodeOS, string(m.Assignment), string(m.DriverFiles), string(p.Injection))
}

// pluginConfig returns the configuration of the device plugin. It depends on what gives containers their
// GPUs: the kubelet, the runtime shim or the NRI plugin.
func (d *Daemon) pluginConfig(p policy.Resolved, source discovery.Source) deviceplugin.Config {
	c := deviceplugin.Config{
		Recorder: d.recorder, Policy: p.Policy, KubeletDir: d.options.KubeletDir, Pods: d.pods, NodeOS: d.compiler.NodeOS,
		Metrics: d.metrics, Log: d.log, OnDevices: d.writeLabels,
	}
	var checkShim func(context.Context) (problem, err error)
	switch p.Injection {
	case policy.InjectByKubelet:
		c.KubeletAnswer = d.newKubeletInjection(p, source).answer
	case policy.InjectByShim:
		checkShim = d.checkShim
	case policy.InjectByNRI:
		// The list does not depend on this: until the plugin runs again, PreStartContainer makes containers wait.
		c.CheckStart = func(ctx context.Context) error { return readiness.CheckPlugin(ctx, d.options.RuntimeDir) }
	}
	check := func(ctx context.Context) (problem, err error) {
		if err := d.recorder.EnsureWritable(ctx); err != nil {
			return err, nil
		}
		if checkShim == nil {
			return nil, nil
		}
		return checkShim(ctx)
	}
	offers := func(devices []discovery.Device) bool { return offersAny(devices, p.Policy, d.compiler.NodeOS) }
	c.ListDevices = (&checkedList{list: source.Devices, offers: offers, check: check, log: d.log}).devices
	return c
}

func (d *Daemon) newKubeletInjection(p policy.Resolved, source discovery.Source) *kubeletInjection {
	d.log.Warn("The kubelet gives containers their GPUs (injection: kubelet): there are no extra mounts and no GPUs for containers outside Kubernetes, " +
		"a restarted container has the driver files of its admission, and starts even if its GPU is gone; see docs/windows.md#kubelet-injection")
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
		UseInventory: p.UseInventory, StateDir: d.compiler.StateDir, QueryDriver: true, HostRoot: d.options.HostRoot,
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
	if !offersAny(devices, p, d.compiler.NodeOS) {
		return errors.New("there is no GPU for any resource on this node, and failOnInitError is set")
	}
	return nil
}

// offersAny reports whether one of the devices belongs to a resource.
func offersAny(devices []discovery.Device, p policy.Policy, nodeOS string) bool {
	return slices.ContainsFunc(resources.Match(devices, p, nodeOS), func(d resources.Device) bool { return d.Rule != nil })
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
		if errors.Is(err, node.ErrNoSource) {
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
