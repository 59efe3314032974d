package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/directx-nri/directx-nri/advertiser"
	"github.com/directx-nri/directx-nri/internal/metrics"
	"github.com/directx-nri/directx-nri/internal/readiness"
)

// status is what the daemon does now, for its health and metrics.
type status struct {
	// advertiser is nil if nothing can be advertised. problem is the reason, nil if there is
	// nothing to advertise.
	advertiser *advertiser.Advertiser
	problem    error
	// ready returns an error while containers cannot be given GPUs.
	ready func(context.Context) error
}

// checkAlive returns an error if the process hangs.
func (d *Daemon) checkAlive(context.Context) error {
	if a := d.status.Load().advertiser; a != nil {
		return a.CheckAlive()
	}
	return nil
}

// checkReady returns an error if containers cannot be given GPUs now.
func (d *Daemon) checkReady(ctx context.Context) error {
	s := d.status.Load()
	if s.advertiser == nil {
		return s.problem
	}
	return errors.Join(s.advertiser.CheckRegistered(), s.ready(ctx), d.recorder.CheckWritable(ctx))
}

// reportNode sets the metrics of the node.
func (d *Daemon) reportNode(ctx context.Context, n metrics.Node) {
	a := d.status.Load().advertiser
	if a == nil {
		return
	}
	var containers []advertiser.ContainerDevices // nil if they are unknown
	if !a.Allocating() {
		containers, _ = d.pods.Containers(ctx)
	}
	a.Report(n, containers)
}

// checkPlugin returns an error if the NRI plugin cannot adjust containers now.
func (d *Daemon) checkPlugin(ctx context.Context) error {
	if err := readiness.Check(ctx, filepath.Join(d.options.RuntimeDir, readiness.SocketName)); err != nil {
		return fmt.Errorf("%w; is directx-nri running on this node, and is NRI enabled in containerd?", err)
	}
	return nil
}
