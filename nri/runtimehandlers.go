package nri

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/criclient"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
	"github.com/directx-nri/directx-nri/shim/realshim"
)

// peer is the containerd that the plugin has last connected to.
type peer struct {
	pid    int                                     // 0 if it is unknown
	config atomic.Pointer[criclient.RunningConfig] // nil until it is read
}

// readRunning returns the configuration of the containerd at these sockets, whose process has the ID
// peerPID. It fails if several containerds run and each has one of the sockets: the last to start
// replaces the NRI socket.
func readRunning(ctx context.Context, nriSocket, criSocket string, peerPID int) (criclient.RunningConfig, error) {
	if peerPID != 0 {
		pid, err := localgrpc.ServerPID(ctx, criSocket)
		if err != nil {
			return criclient.RunningConfig{}, err
		}
		if pid != peerPID {
			err := fmt.Errorf("%s belongs to process %d, and %s to process %d: another containerd has replaced the NRI socket", nriSocket, peerPID, criSocket, pid)
			return criclient.RunningConfig{}, errlog.WithRemedy(err,
				"disable NRI or set another socket_path in its configuration (plugin io.containerd.nri.v1.nri) and restart both, or correct --cri-socket")
		}
	}
	config, err := criclient.ReadRunning(ctx, criSocket)
	if err != nil {
		return config, fmt.Errorf("%w; is --cri-socket %s correct?", err, criSocket)
	}
	return config, nil
}

// runningConfig returns the configuration of the peer. It is read when it is first needed, and again
// after an error.
func (p *Plugin) runningConfig(ctx context.Context) (criclient.RunningConfig, error) {
	peer := p.peer.Load()
	if known := peer.config.Load(); known != nil {
		return *known, nil
	}
	config, err := p.readRunning(ctx, peer.pid)
	if err != nil {
		return config, errlog.WithRemedy(fmt.Errorf("the runtime handlers of containerd are unknown: %w", err), kubeletRetries)
	}
	peer.config.Store(&config)
	return config, nil
}

// checkPodHandler returns an error if containers of the named handler cannot have GPUs: see
// [checkHandler]. Those of Kata Containers or gVisor would run without them.
func (p *Plugin) checkPodHandler(ctx context.Context, name, realShim string) error {
	config, err := p.runningConfig(ctx)
	if err != nil {
		return err
	}
	if err := checkHandler(config, name, realShim); err != nil {
		return decision.WithReason(decision.ReasonHandler,
			errlog.WithRemedy(err, "use a runtime class whose handler runs runc, or no runtime class"))
	}
	return nil
}

// checkAnyHandler returns an error if containers of no handler can have GPUs: see [checkHandler].
func (p *Plugin) checkAnyHandler(ctx context.Context, realShim string) error {
	config, err := p.runningConfig(ctx)
	if err != nil {
		return err
	}
	isUsable := func(h containerdconfig.Handler) bool { return checkHandler(config, h.Name, realShim) == nil }
	if slices.ContainsFunc(config.Handlers, isUsable) {
		return nil
	}
	if len(containerdconfig.Eligible(config.Handlers, config.OS)) > 0 { // All of these use the runtime shim.
		return realshim.CheckKernel(realShim)
	}
	reasons := containerdconfig.WhyNotEligible(config.Handlers, config.OS)
	return errlog.WithRemedy(fmt.Errorf("no runtime handler of containerd can have GPUs: %s", reasons), "add one of runc")
}

// checkHandler returns nil if containers of the named handler, "" for the default one,
// can have GPUs from the NRI plugin. realShim is the shim that the runtime shim runs, "" for runc's.
func checkHandler(c criclient.RunningConfig, name, realShim string) error {
	name = cmp.Or(name, c.Default)
	i := slices.IndexFunc(c.Handlers, func(h containerdconfig.Handler) bool { return h.Name == name })
	if i < 0 {
		return fmt.Errorf("containerd has no runtime handler %q", name)
	}
	if err := realshim.CheckKernel(realShim); err != nil && c.Handlers[i].UsesShim() {
		return err
	}
	return c.Handlers[i].CheckEligible(c.OS)
}
