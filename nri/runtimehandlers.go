package nri

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/cri"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
)

// peer is the containerd that the plugin has last connected to.
type peer struct {
	pid    int                        // 0 if it is unknown
	config atomic.Pointer[cri.Config] // nil until it is read
}

// readRunning returns the configuration of the containerd at these sockets, whose process has the ID
// peerPID. It fails if several containerds run and each has one of the sockets: the last to start
// replaces the NRI socket.
func readRunning(ctx context.Context, nriSocket, criSocket string, peerPID int) (cri.Config, error) {
	if peerPID != 0 {
		pid, err := localgrpc.ServerPID(ctx, criSocket)
		if err != nil {
			return cri.Config{}, err
		}
		if pid != peerPID {
			return cri.Config{}, fmt.Errorf("%s belongs to process %d, and %s to process %d: another containerd has replaced the NRI socket", nriSocket, peerPID, criSocket, pid)
		}
	}
	config, err := cri.ReadConfig(ctx, criSocket)
	if err != nil {
		return config, fmt.Errorf("%w; is --cri-socket %s correct?", err, criSocket)
	}
	return config, nil
}

// runningConfig returns the configuration of the peer. It is read when it is first needed, and again
// after an error.
func (p *Plugin) runningConfig(ctx context.Context) (cri.Config, error) {
	peer := p.peer.Load()
	if known := peer.config.Load(); known != nil {
		return *known, nil
	}
	config, err := p.readRunning(ctx, peer.pid)
	if err != nil {
		return config, fmt.Errorf("the runtime handlers of containerd are unknown: %w", err)
	}
	peer.config.Store(&config)
	return config, nil
}

// checkPodHandler returns an error if pods of the named handler cannot have GPUs. Those of Kata Containers
// or gVisor would run without them.
func (p *Plugin) checkPodHandler(ctx context.Context, name string) error {
	config, err := p.runningConfig(ctx)
	if err != nil {
		return err
	}
	if err := config.CheckHandler(name, "linux"); err != nil {
		return decision.WithReason(decision.ReasonHandler, err)
	}
	return nil
}
