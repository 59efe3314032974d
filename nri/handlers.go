package nri

import (
	"context"
	"fmt"
	"sync"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
)

// LoadHandlers returns the configuration that the runtime with the process ID peer has
// loaded; peer is 0 if it is unknown.
type LoadHandlers func(ctx context.Context, peer int) (containerdconfig.Loaded, error)

// runtimeHandlers are those of the runtime that the plugin is registered with. They are
// loaded once for each registration, when they are first needed, and again after an error.
type runtimeHandlers struct {
	load LoadHandlers

	mu     sync.Mutex
	peer   int
	loaded *containerdconfig.Loaded // nil until it is loaded
}

var _ decision.Handlers = (*runtimeHandlers)(nil)

// connect starts a registration with the runtime whose process ID is peer.
func (h *runtimeHandlers) connect(peer int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.peer, h.loaded = peer, nil
}

func (h *runtimeHandlers) get(ctx context.Context) (containerdconfig.Loaded, error) {
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

// CheckHandler implements [decision.Handlers]: a container of Kata Containers or gVisor
// would run without its GPU, and either can be the default handler.
func (h *runtimeHandlers) CheckHandler(ctx context.Context, name string) error {
	loaded, err := h.get(ctx)
	if err != nil {
		return err
	}
	return loaded.CheckHandler(name)
}

// checkAny returns nil if the containers of any handler can have GPUs.
func (h *runtimeHandlers) checkAny(ctx context.Context) error {
	loaded, err := h.get(ctx)
	if err != nil {
		return err
	}
	return loaded.CheckAnyHandler()
}
