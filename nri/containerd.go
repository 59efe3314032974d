package nri

import (
	"context"
	"fmt"

	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// Containerd is the container runtime, by the paths of its sockets.
type Containerd struct {
	NRISocket string
	CRISocket paths.CRISocket
}

// LoadHandlers is a [LoadHandlers]. It is an error if another process than peer serves the
// CRI socket: the last containerd that starts replaces the NRI socket.
func (c Containerd) LoadHandlers(ctx context.Context, peer int) (containerdconfig.Loaded, error) {
	if peer != 0 {
		owner, err := localgrpc.SocketOwner(ctx, c.CRISocket.String())
		if err != nil {
			return containerdconfig.Loaded{}, err
		}
		defer func() { _ = owner.Close() }()
		if owner.PID != peer {
			return containerdconfig.Loaded{}, fmt.Errorf("%s belongs to process %d, and %s to process %d: another containerd has replaced the NRI socket; "+
				"disable NRI or set another socket_path in its configuration (plugin io.containerd.nri.v1.nri) and restart both, or correct --cri-socket", c.NRISocket, peer, c.CRISocket, owner.PID)
		}
	}
	loaded, err := containerdconfig.Load(ctx, c.CRISocket.String())
	if err != nil {
		return loaded, fmt.Errorf("%w; is --cri-socket %s correct?", err, c.CRISocket)
	}
	return loaded, nil
}

// CheckSynchronize returns an error if containerd may crash when the plugin registers.
func (c Containerd) CheckSynchronize(ctx context.Context) error {
	return containerdconfig.CheckSynchronize(ctx, c.CRISocket.String())
}
