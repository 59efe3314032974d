package nri

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/criclient"
	"github.com/directx-nri/directx-nri/internal/decision"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
	"github.com/directx-nri/directx-nri/internal/realshim"
	"github.com/directx-nri/directx-nri/internal/remedy"
)

// runtimeHandlers are those of the containerd that the plugin is registered with. containerd's
// configuration is read when it is first needed after a registration, and again after an error.
type runtimeHandlers struct {
	// read returns the configuration that the containerd with the process ID peerPID has loaded;
	// peerPID is 0 if it is unknown.
	read func(ctx context.Context, peerPID int) (criclient.RunningConfig, error)

	mu      sync.Mutex // not held while the configuration is read, which can take long
	peerPID int
	config  *criclient.RunningConfig // nil until it is read
}

// newRuntimeHandlers returns the handlers of the containerd at these sockets. Reading them fails if
// several containerds run and each has one of the sockets: the last to start replaces the NRI socket.
func newRuntimeHandlers(nriSocket string, cri func() string) *runtimeHandlers {
	return &runtimeHandlers{read: func(ctx context.Context, peerPID int) (criclient.RunningConfig, error) {
		criSocket := cri()
		if peerPID != 0 {
			pid, err := localgrpc.ServerPID(ctx, criSocket)
			if err != nil {
				return criclient.RunningConfig{}, err
			}
			if pid != peerPID {
				err := fmt.Errorf("%s belongs to process %d, and %s to process %d: another containerd has replaced the NRI socket", nriSocket, peerPID, criSocket, pid)
				return criclient.RunningConfig{}, remedy.With(err,
					"disable NRI or set another socket_path in its configuration (plugin io.containerd.nri.v1.nri) and restart both, or correct --cri-socket")
			}
		}
		config, err := criclient.ReadRunning(ctx, criSocket)
		if err != nil {
			return config, fmt.Errorf("%w; is --cri-socket %s correct?", err, criSocket)
		}
		return config, nil
	}}
}

// reset discards the configuration, for a registration with the containerd whose process ID is
// peerPID.
func (h *runtimeHandlers) reset(peerPID int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.peerPID, h.config = peerPID, nil
}

func (h *runtimeHandlers) runningConfig(ctx context.Context) (criclient.RunningConfig, error) {
	h.mu.Lock()
	known, peerPID := h.config, h.peerPID
	h.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	config, err := h.read(ctx, peerPID)
	if err != nil {
		return config, remedy.With(fmt.Errorf("the runtime handlers of containerd are unknown: %w", err), kubeletRetries)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.peerPID == peerPID {
		h.config = &config
	}
	return config, nil
}

// check returns an error if containers of the named handler cannot have GPUs: see [checkHandler]. Those
// of Kata Containers or gVisor would run without them.
func (h *runtimeHandlers) check(ctx context.Context, name, realShim string) error {
	config, err := h.runningConfig(ctx)
	if err != nil {
		return err
	}
	if err := checkHandler(config, name, realShim); err != nil {
		return decision.WithReason(decision.ReasonHandler, remedy.With(err, "use a runtime class whose handler runs runc, or no runtime class"))
	}
	return nil
}

// checkAny returns an error if containers of no handler can have GPUs: see [checkHandler].
func (h *runtimeHandlers) checkAny(ctx context.Context, realShim string) error {
	config, err := h.runningConfig(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(config.Handlers, func(c containerdconfig.Handler) bool { return checkHandler(config, c.Name, realShim) == nil }) {
		return nil
	}
	if len(containerdconfig.Eligible(config.Handlers, config.OS)) > 0 { // All of these use the runtime shim.
		return realshim.CheckKernel(realShim)
	}
	return remedy.With(fmt.Errorf("no runtime handler of containerd can have GPUs: %s", containerdconfig.WhyNotEligible(config.Handlers, config.OS)), "add one of runc")
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
