package advertiser

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/directx-nri/directx-nri/internal/cri"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/shim/diversion"
)

// queryTimeout limits a query of containerd's configuration.
const queryTimeout = 2 * time.Second

// undoTimeout limits [diversion.Keeper.Undo] when the daemon ends. The kubelet kills the pod after 30 seconds.
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

// resolveInjection returns what adds GPUs to containers on this node. If it is auto on Windows, that depends on
// containerd's version.
func (d *Daemon) resolveInjection(ctx context.Context, configured policy.Injection) (policy.Injection, error) {
	if configured != policy.InjectAuto || d.compiler.NodeOS != "windows" {
		return cri.ResolveInjection(configured, d.compiler.NodeOS, ""), nil
	}
	containerd, err := d.readContainerd(ctx)
	return cri.ResolveInjection(configured, d.compiler.NodeOS, containerd.Version), err
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
		if errors.Is(err, diversion.ErrUnknownDirectory) || errors.Is(err, diversion.ErrSeveralDirectories) {
			err = nil // There is none of ours.
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
	return d.options.Diversion.Undo(ctx)
}
