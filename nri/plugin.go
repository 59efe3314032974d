// Package nri is the NRI plugin: it answers the container runtime with a
// ContainerAdjustment when a container that requests a GPU is created.
//
// Package decision decides what the container gets; [Plugin] has the hooks, and
// [Runner] keeps the plugin registered with the runtime.
package nri

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/metrics"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/ocispec/adjustment"
)

const (
	// hookTimeout limits a hook. The runtime drops a plugin that has not answered
	// within 2 s and starts the container without it, where the interlock fails it
	// with a message that does not name the cause.
	hookTimeout = 1200 * time.Millisecond
)

var (
	errTooSlow      = decision.WithReason(decision.ReasonSlow, errors.New("reading the allocation records or the driver's files of this node took too long; the kubelet retries"))
	errUnregistered = errors.New("not registered with the container runtime")
	errStuck        = decision.WithReason(decision.ReasonSlow, errors.New("the allocation records or the driver's files of this node cannot be read: the disk does not respond"))
)

// Plugin has the hooks of the NRI plugin.
type Plugin struct {
	decider func() (*decision.Decider, error)
	load    func(ctx context.Context, runtime int) (containerdconfig.Loaded, error)
	metrics *metrics.Metrics
	log     logrus.FieldLogger

	timeout time.Duration
	hung    atomic.Int64 // workers that have taken longer than timeout
	spent   hookTime

	unregistered atomic.Pointer[error] // why the plugin is not registered, nil if it is

	mu     sync.Mutex
	peer   int                      // the process of the runtime of this registration, 0 if unknown
	loaded *containerdconfig.Loaded // by that runtime, nil if unknown
}

// NewPlugin returns a plugin. decider returns the decider with the node policy in
// force; it is called for each container that requests a GPU. load returns the
// configuration that the runtime with this process ID has loaded, 0 if that is unknown; it is
// called once for each registration, and again after an error.
func NewPlugin(decider func() (*decision.Decider, error), load func(ctx context.Context, runtime int) (containerdconfig.Loaded, error), m *metrics.Metrics, log logrus.FieldLogger) *Plugin {
	p := &Plugin{decider: decider, load: load, metrics: m, log: log, timeout: hookTimeout}
	p.unregistered.Store(&errUnregistered)
	return p
}

// CreateContainer returns the adjustment of a container that has an allocation. A
// container that requests nothing depends on neither files nor workers.
func (p *Plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	began := time.Now()
	defer func() { p.metrics.Hooks.WithLabelValues("CreateContainer").Observe(time.Since(began).Seconds()) }()
	c := p.describe(pod, container)
	if !decision.RequestsGPU(c) {
		return nil, nil, nil
	}
	edits, ok, err := p.decide(ctx, c)
	if err != nil {
		decision.LogRefusal(p.log, c, err)
		p.metrics.Refusals.WithLabelValues("nri", string(decision.ReasonOf(err))).Inc()
		return nil, nil, err
	}
	if !ok {
		return nil, nil, nil
	}
	return adjustment.New(edits, container.GetMounts()), nil, nil
}

// describe returns what a decision needs of container.
func (p *Plugin) describe(pod *api.PodSandbox, container *api.Container) decision.Container {
	return decision.Container{
		OS:             ocispec.Linux,
		ID:             container.GetId(),
		Pod:            &decision.Pod{UID: pod.GetUid(), Namespace: pod.GetNamespace(), Name: pod.GetName()},
		Name:           container.GetName(),
		Env:            container.GetEnv(),
		Annotations:    container.GetAnnotations(),
		PodAnnotations: pod.GetAnnotations(),
		CheckHandler:   func(ctx context.Context) error { return p.checkHandler(ctx, handlerOf(pod)) },
	}
}

// handlerOf returns the name of the handler that runs pod, "" for the default one. For a pod
// with this annotation, containerd takes another than it reports to plugins (GetSandboxRuntime in
// https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/config/config.go).
func handlerOf(pod *api.PodSandbox) string {
	if pod.GetAnnotations()["io.kubernetes.cri.untrusted-workload"] == "true" {
		return "untrusted"
	}
	return pod.GetRuntimeHandler()
}

// checkHandler returns nil if containers of the runtime handler can have GPUs: a
// container of Kata Containers or gVisor would run without its GPU, and either can be
// the default handler.
func (p *Plugin) checkHandler(ctx context.Context, handler string) error {
	loaded, err := p.runtime(ctx)
	if err != nil {
		return err
	}
	return loaded.CheckHandler(handler)
}

// runtime returns the configuration that the runtime has loaded.
func (p *Plugin) runtime(ctx context.Context) (containerdconfig.Loaded, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loaded == nil {
		ctx, cancel := context.WithTimeout(ctx, p.timeout/3) // The decision needs the rest.
		defer cancel()
		loaded, err := p.load(ctx, p.peer)
		if err != nil {
			return loaded, fmt.Errorf("the runtime handlers of containerd are unknown: %w; the kubelet retries", err)
		}
		p.loaded = &loaded
	}
	return *p.loaded, nil
}

// connect makes the next decision load the configuration of the runtime whose process is peer.
func (p *Plugin) connect(peer int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.peer, p.loaded = peer, nil
}

// decide decides in a worker, which is left behind when it takes too long: reading a
// file cannot be canceled. While one is left, it refuses at once: the runtime calls one
// hook at a time, so containers that request nothing would wait for each time-out.
func (p *Plugin) decide(ctx context.Context, c decision.Container) (ocispec.Edits, bool, error) {
	if err := p.Alive(); err != nil {
		return ocispec.Edits{}, false, c.Refuse(err)
	}
	type result struct {
		edits ocispec.Edits
		ok    bool
		err   error
	}
	began := time.Now()
	limit := p.spent.left(began, p.timeout)
	if limit <= 0 {
		return ocispec.Edits{}, false, c.Refuse(errTooSlow)
	}
	defer func() { p.spent.add(began, time.Now()) }()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	results := make(chan result, 1)
	go func() {
		var r result
		defer func() {
			if cause := recover(); cause != nil {
				p.log.WithField("stack", string(debug.Stack())).Error(cause)
				r.err = c.Refuse(fmt.Errorf("%w: %v", decision.ErrInternal, cause))
			}
			results <- r
		}()
		decider, err := p.decider()
		if err != nil {
			r.err = c.Refuse(err)
		} else {
			r.edits, r.ok, r.err = decider.Decide(ctx, c)
		}
	}()
	select {
	case r := <-results:
		return r.edits, r.ok, r.err
	case <-ctx.Done():
		p.hung.Add(1)
		go func() {
			<-results
			p.hung.Add(-1)
		}()
		return ocispec.Edits{}, false, c.Refuse(fmt.Errorf("%w (waited %s)", errTooSlow, time.Since(began).Round(time.Millisecond)))
	}
}

// Alive returns an error while a hook hangs.
func (p *Plugin) Alive() error {
	if p.hung.Load() > 0 {
		return errStuck
	}
	return nil
}

// Ready returns an error while the plugin is not registered or cannot adjust containers, or the
// runtime has no handler whose containers can have GPUs. It takes at most as long as a hook.
func (p *Plugin) Ready(ctx context.Context) error {
	if err := p.Alive(); err != nil {
		return err
	}
	if why := p.unregistered.Load(); why != nil {
		return *why
	}
	loaded, err := p.runtime(ctx)
	if err != nil {
		return err
	}
	return loaded.CheckAnyHandler()
}

// hookTime is how long hooks have taken together, less the time between them: a container that
// requests nothing can wait for all of them.
type hookTime struct {
	mu    sync.Mutex
	total time.Duration
	until time.Time // the end of the last hook
}

// left returns how long a hook that begins now may take, if one alone may take timeout.
func (h *hookTime) left(now time.Time, timeout time.Duration) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.total = max(0, h.total-max(0, now.Sub(h.until)))
	h.until = now
	return min(timeout, timeout+timeout/2-h.total)
}

// add adds a hook.
func (h *hookTime) add(began, ended time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.total += ended.Sub(began)
	h.until = ended
}
