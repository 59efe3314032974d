package advertiser

import (
	"context"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/internal/cri"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
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

// dependsOnVersion reports whether containerd's version determines the injection.
func (d *Daemon) dependsOnVersion(configured policy.Injection) bool {
	return configured == policy.InjectAuto && d.compiler.NodeOS == "windows"
}

// resolveInjection returns what adds GPUs to containers on this node. If that depends on containerd's version, it
// waits until containerd reports it.
func (d *Daemon) resolveInjection(ctx context.Context, configured policy.Injection) (policy.Injection, error) {
	version := ""
	if d.dependsOnVersion(configured) {
		err := d.retryUntilReady(ctx, logrus.ErrorLevel, "No GPU is advertised until containerd's version is known", func() error {
			config, err := d.readContainerd(ctx)
			version = config.Version
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return cri.ResolveInjection(configured, d.compiler.NodeOS, version), nil
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
