package advertiser

import (
	"context"
	"fmt"
	"time"

	"github.com/directx-nri/directx-nri/internal/cri"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// queryTimeout limits a query of containerd's configuration.
const queryTimeout = 2 * time.Second

// undoTimeout limits [diversion.Keeper.Undo] when the daemon ends. A HostProcess container has less time: runhcs
// starts programs with cmd.exe, and 5 seconds after its end, it kills the others (hcsshim, internal/jobcontainers).
const undoTimeout = 20 * time.Second

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

// resolveInjection returns what adds GPUs to containers on this node, and the configuration of containerd if it is read
// for that: the shim depends on it, and so does auto on Windows.
func (d *Daemon) resolveInjection(ctx context.Context, configured policy.Injection) (_ policy.Injection, c cri.Config, err error) {
	if configured == policy.InjectByShim || configured == policy.InjectAuto && d.compiler.NodeOS == "windows" {
		c, err = d.readContainerd(ctx)
	}
	return cri.ResolveInjection(configured, d.compiler.NodeOS, c.Version), c, err
}

// repairDiversion puts containerd's shim back until ctx ends, whenever there is none: whatever else does not work on
// this node, containers start.
func (d *Daemon) repairDiversion(ctx context.Context) {
	var lastErr errlog.LastError
	for d.options.Diversion != nil && ctx.Err() == nil {
		repaired, err := d.options.Diversion.Repair()
		if repaired {
			d.log.Warn("containerd's shim was missing, so that no container started, and is back in its place")
		}
		if lastErr.Changed(err) && err != nil {
			d.log.WithError(err).Error("Cannot repair containerd's shim, retrying")
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryInterval):
		}
	}
}

// undoDiversion moves containerd's shim back.
func (d *Daemon) undoDiversion(ctx context.Context) error {
	if d.options.Diversion == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, undoTimeout)
	defer cancel()
	if err := d.options.Diversion.Undo(ctx); err != nil {
		return fmt.Errorf("move containerd's shim back: %w", err)
	}
	return nil
}
