package nri

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"directx-nri/ocispec"
)

// hookTimeout is how long a hook may work. The runtime drops a plugin that has
// not answered within 2 s, and then starts the container without it; an error
// before that fails the container, as it should.
const hookTimeout = 1200 * time.Millisecond

var errTooSlow = errors.New("no answer in time from this node's disk")

// Plugin is the NRI plugin's hooks.
type Plugin struct {
	adjuster *Adjuster
	guard    *Guard
	stop     func(pod, containerID string)
	log      logrus.FieldLogger

	timeout time.Duration
	workers sync.WaitGroup
}

// NewPlugin returns the hooks around adjuster. stop is called for each
// container that must be stopped because it runs without what it was promised;
// it must not block.
func NewPlugin(adjuster *Adjuster, stop func(pod, containerID string)) *Plugin {
	return &Plugin{
		adjuster: adjuster, stop: stop, log: adjuster.Log, timeout: hookTimeout,
		guard: NewGuard(adjuster.OS),
	}
}

// Hooks returns the plugin for one registration with the runtime.
func (p *Plugin) Hooks(synchronized func()) any { return &pluginHooks{p, synchronized} }

type pluginHooks struct {
	*Plugin
	synchronized func()
}

// Synchronize implements the stub's interface.
func (h *pluginHooks) Synchronize(ctx context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	updates, err := h.Plugin.Synchronize(ctx, pods, containers)
	if err == nil {
		h.synchronized()
	}
	return updates, err
}

// Synchronize has those containers stopped that were started without their
// adjustment, so that the kubelet starts them again.
func (p *Plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	names := map[string]string{}
	for _, pod := range pods {
		names[pod.GetId()] = pod.GetNamespace() + "/" + pod.GetName()
	}
	for _, c := range missed(p.adjuster.OS, containers) {
		pod := names[c.GetPodSandboxId()]
		p.log.WithFields(logrus.Fields{"pod": pod, "container": c.GetName(), "id": c.GetId()}).
			Error("container runs without the GPU that it was promised, because it was created while this plugin was not answering; stopping it")
		p.stop(pod, c.GetId())
	}
	return nil, nil
}

// missed returns the running ones of containers that were created without
// their adjustment. Those that do not run yet are refused at their start.
func missed(os ocispec.OS, containers []*api.Container) []*api.Container {
	var list []*api.Container
	for _, c := range containers {
		switch c.GetState() {
		case api.ContainerState_CONTAINER_CREATED, api.ContainerState_CONTAINER_STOPPED:
			continue
		}
		if Unadjusted(os, c) {
			list = append(list, c)
		}
	}
	return list
}

// CreateContainer answers with the adjustment for a container that holds an
// allocation.
func (p *Plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	type answer struct {
		adjustment *api.ContainerAdjustment
		err        error
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	// Reading a file cannot be called off, so the work has to be left behind
	// when it takes too long.
	answers := make(chan answer, 1)
	p.workers.Go(func() {
		adjustment, err := p.adjuster.Adjust(ctx, pod, container)
		answers <- answer{adjustment, err}
	})
	select {
	case a := <-answers:
		if a.err != nil {
			p.log.WithError(a.err).Error("container refused")
		}
		return a.adjustment, nil, a.err
	case <-ctx.Done():
		err := fmt.Errorf("directx-nri: %s is not started: %w (%s); it is tried again", describe(pod, container), errTooSlow, p.timeout)
		p.log.WithError(err).Error("container refused")
		return nil, nil, err
	}
}

// StartContainer refuses a container that was created without its adjustment.
func (p *Plugin) StartContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) error {
	return p.guard.StartContainer(ctx, pod, container)
}

// Wait returns when no hook's work is under way any more.
func (p *Plugin) Wait() { p.workers.Wait() }

// Guard is an NRI plugin of its own that does one thing: it refuses the start
// of a container that holds an allocation and was created without its
// adjustment. It asks neither files nor anybody else, and runs in another
// process than [Plugin], so that a runtime which has dropped that one for not
// answering still finds this one.
type Guard struct {
	os ocispec.OS
}

// NewGuard returns a guard over containers of the given operating system.
func NewGuard(os ocispec.OS) *Guard { return &Guard{os: os} }

// StartContainer is called when the container is made and before its process
// runs.
func (g *Guard) StartContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	if !Unadjusted(g.os, container) {
		return nil
	}
	return fmt.Errorf("directx-nri: %s is not started: it holds a GPU and was created without it, because the NRI plugin did not answer; "+
		"it is created again; if this goes on, see the log of directx-nri on this node", describe(pod, container))
}

// Hooks returns the guard for one registration with the runtime.
func (g *Guard) Hooks(synchronized func()) any { return &guardHooks{g, synchronized} }

type guardHooks struct {
	*Guard
	synchronized func()
}

// Synchronize implements the stub's interface. What runs already is [Plugin]'s
// to stop.
func (h *guardHooks) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	h.synchronized()
	return nil, nil
}
