package advertiser

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/cri"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/shim/bypass"
)

// queryTimeout limits a query of containerd's configuration.
const queryTimeout = 2 * time.Second

// undoTimeout limits [diversion.Keeper.Undo] when the daemon ends. The kubelet kills the pod after 30 seconds.
const undoTimeout = 20 * time.Second

// injectionInterval is the interval at which [Daemon.watchInjection] reads containerd's version.
const injectionInterval = 30 * time.Second

// watchInjection returns [errNewRun] when containerd was replaced by a version with which auto is another
// injection, or nil when ctx ends.
func (d *Daemon) watchInjection(ctx context.Context, configured policy.Injection) error {
	if configured != policy.InjectAuto || d.compiler.NodeOS != "windows" {
		return nil
	}
	var first policy.Injection
	ticker := time.NewTicker(injectionInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		config, err := d.readContainerd(ctx)
		if err != nil {
			continue // The check of the list reports it.
		}
		now := cri.ResolveInjection(configured, d.compiler.NodeOS, config.Version)
		if first = cmp.Or(first, now); now != first {
			d.log.WithFields(logrus.Fields{"containerd": config.Version, "injection": now}).
				Info("Another version of containerd needs another injection")
			return errNewRun
		}
	}
}

// readContainerd returns the configuration that containerd has loaded.
func (d *Daemon) readContainerd(ctx context.Context) (cri.Config, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	config, err := cri.ReadConfig(ctx, paths.CRI(d.options.CRISocket))
	if err != nil {
		return config, fmt.Errorf("%w; is containerd running, and is --cri-socket %s correct?", err, paths.CRI(d.options.CRISocket))
	}
	return config, nil
}

// withInjection returns p with the injection that this node needs in place of auto. On Windows, it waits until
// containerd reports its version.
func (d *Daemon) withInjection(ctx context.Context, p policy.Policy) (policy.Policy, error) {
	version := ""
	if p.Injection == policy.InjectAuto && d.compiler.NodeOS == "windows" {
		err := d.retryUntilReady(ctx, logrus.ErrorLevel, "No GPU is advertised until containerd's version is known", func() error {
			config, err := d.readContainerd(ctx)
			version = config.Version
			return err
		})
		if err != nil {
			return p, err
		}
	}
	p.Injection = cri.ResolveInjection(p.Injection, d.compiler.NodeOS, version)
	return p, nil
}

// checkShim makes the diversion. It returns the problem because of which containers would not get GPUs from
// the runtime shim, nil if there is none, and an error if that is not known, as during a restart of
// containerd.
func (d *Daemon) checkShim(ctx context.Context) (problem, err error) {
	config, err := d.readContainerd(ctx)
	if err != nil {
		return nil, err
	}
	problem = cmp.Or(config.Check(d.compiler.NodeOS), bypass.Check(d.compiler.StateDir))
	if problem == nil && d.options.Diversion != nil {
		problem = d.options.Diversion.Ensure(ctx)
	}
	return problem, nil
}

// undoDiversion moves containerd's shim back.
func (d *Daemon) undoDiversion(ctx context.Context) error {
	if d.options.Diversion == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, undoTimeout)
	defer cancel()
	return d.options.Diversion.Undo(ctx)
}

// checkedList lists GPUs, as unhealthy while containers would not start with them.
type checkedList struct {
	list func(context.Context) ([]discovery.Device, error)
	// offers reports whether one of the devices would be offered. Without one, nothing is checked, and nothing
	// on the node changes.
	offers func([]discovery.Device) bool
	// check returns why containers would not start with GPUs, nil if they would, and an error if that is not
	// known.
	check func(context.Context) (problem, err error)
	log   logrus.FieldLogger

	// hasPassed reports that check has passed once, and problem is its last known result since. Only devices
	// uses them, which one goroutine calls.
	hasPassed bool
	problem   error
}

// devices returns the list. Until the check has passed once, it returns the result of the check as an error.
// While the result is not known, the last one applies.
func (c *checkedList) devices(ctx context.Context) ([]discovery.Device, error) {
	devices, err := c.list(ctx)
	if err != nil || !c.offers(devices) {
		return devices, err
	}
	problem, err := c.check(ctx)
	switch {
	case cmp.Or(problem, err) == nil:
		if !c.hasPassed || c.problem != nil {
			c.log.Info("Advertising GPUs")
		}
		c.hasPassed, c.problem = true, nil
	case !c.hasPassed:
		return nil, fmt.Errorf("containers would not start with a GPU: %w", cmp.Or(problem, err))
	case problem != nil:
		if c.problem == nil {
			c.log.WithError(problem).Error("Stopped advertising GPUs: containers cannot start with them")
		}
		c.problem = problem
	}
	if c.problem != nil {
		for i := range devices {
			if devices[i].Health.OK() {
				devices[i].Health.Reason = errlog.ErrorLine(c.problem)
			}
		}
	}
	return devices, nil
}
