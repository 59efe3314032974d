package nri

import (
	"context"
	"fmt"
	"sync"

	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
)

// HandlerLoader returns the configuration that the runtime with the process ID peer has
// loaded; peer is 0 if it is unknown.
type HandlerLoader func(ctx context.Context, peer int) (containerdconfig.RunningConfig, error)

// runtimeHandlers are those of the runtime that the plugin is registered with. They are
// loaded once for each registration, when they are first needed, and again after an error.
type runtimeHandlers struct {
	load HandlerLoader

	mu     sync.Mutex
	peer   int
	loaded *containerdconfig.RunningConfig // nil until it is loaded
}

// connect starts a registration with the runtime whose process ID is peer.
func (h *runtimeHandlers) connect(peer int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.peer, h.loaded = peer, nil
}

func (h *runtimeHandlers) get(ctx context.Context) (containerdconfig.RunningConfig, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.loaded == nil {
		loaded, err := h.load(ctx, h.peer)
		if err != nil {
			return loaded, fmt.Errorf("the runtime handlers of containerd are unknown: %w; the kubelet retries", err)
		}
		h.loaded = &loaded
	}
	return *h.loaded, nil
}

// check is [decision.Decider.CheckHandler]: a container of Kata Containers or gVisor would
// run without its GPU, and either can be the default handler.
func (h *runtimeHandlers) check(ctx context.Context, name string) error {
	loaded, err := h.get(ctx)
	if err != nil {
		return err
	}
	return loaded.CheckHandler(name)
}

// NewHandlerLoader returns what loads the configuration of the containerd at these sockets. It is an
// error if another process than peer serves the CRI socket: the last containerd that starts
// replaces the NRI socket. At boot, k3s creates its CRI socket after the plugin has started, so
// the path of that is determined at each use: see paths.CRISocket.
func NewHandlerLoader(nriSocket string, cri fmt.Stringer) HandlerLoader {
	return func(ctx context.Context, peer int) (containerdconfig.RunningConfig, error) {
		criSocket := cri.String()
		if peer != 0 {
			owner, err := localgrpc.SocketOwner(ctx, criSocket)
			if err != nil {
				return containerdconfig.RunningConfig{}, err
			}
			defer func() { _ = owner.Close() }()
			if owner.PID != peer {
				return containerdconfig.RunningConfig{}, fmt.Errorf("%s belongs to process %d, and %s to process %d: another containerd has replaced the NRI socket; "+
					"disable NRI or set another socket_path in its configuration (plugin io.containerd.nri.v1.nri) and restart both, or correct --cri-socket", nriSocket, peer, criSocket, owner.PID)
			}
		}
		loaded, err := containerdconfig.Load(ctx, criSocket)
		if err != nil {
			return loaded, fmt.Errorf("%w; is --cri-socket %s correct?", err, criSocket)
		}
		return loaded, nil
	}
}
