package nri

import (
	"context"
	"fmt"
	"sync"

	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
)

// RuntimeHandlers are those of the containerd that the plugin is registered with. They are
// loaded once for each registration, when they are first needed, and again after an error.
type RuntimeHandlers struct {
	// load returns the configuration that the containerd with the process ID peer has loaded;
	// peer is 0 if it is unknown.
	load func(ctx context.Context, peer int) (containerdconfig.RunningConfig, error)

	mu     sync.Mutex
	peer   int
	loaded *containerdconfig.RunningConfig // nil until it is loaded
}

// NewRuntimeHandlers returns the handlers of the containerd at these sockets. Loading them fails if
// the two belong to different processes: the last containerd that starts replaces the NRI socket.
// At boot, k3s creates its CRI socket after the plugin has started, so cri determines its path at
// each use: see paths.CRISocket.
func NewRuntimeHandlers(nriSocket string, cri fmt.Stringer) *RuntimeHandlers {
	return &RuntimeHandlers{load: func(ctx context.Context, peer int) (containerdconfig.RunningConfig, error) {
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
	}}
}

// reset forgets the handlers, for a registration with the containerd whose process ID is peer.
func (h *RuntimeHandlers) reset(peer int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.peer, h.loaded = peer, nil
}

func (h *RuntimeHandlers) get(ctx context.Context) (containerdconfig.RunningConfig, error) {
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

// Check is for [decision.Decider.CheckHandler]: a container of Kata Containers or gVisor would
// run without its GPU, and either can be the default handler.
func (h *RuntimeHandlers) Check(ctx context.Context, name string) error {
	loaded, err := h.get(ctx)
	if err != nil {
		return err
	}
	return loaded.CheckHandler(name)
}
