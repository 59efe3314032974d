package nri

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"directx-nri/nri/decision"
	"directx-nri/ocispec"
)

// hookTimeout is how long a hook may work. The runtime drops a plugin that has
// not answered within 2 s, and then starts the container without it; an error
// before that fails the container, as it should.
const hookTimeout = 1200 * time.Millisecond

// maxWorkers is how many hooks may be at work at once. The runtime asks one at
// a time; more are those that it no longer waits for, on a disk that hangs.
const maxWorkers = 16

var (
	errTooSlow = decision.Because(decision.ReasonSlow, errors.New("the records or the runtime files of this node could not be read in time"))
	errStuck   = decision.Because(decision.ReasonSlow, errors.New("the records or the runtime files of this node cannot be read: the disk does not answer"))
)

// Plugin is the NRI plugin's hooks.
type Plugin struct {
	adjuster *Adjuster
	guard    *Guard
	stop     func(pod, containerID string)
	log      logrus.FieldLogger
	// Observer is told what the hooks do. nil when nobody wants to know.
	Observer Observer

	timeout time.Duration
	// slots has one element for each worker; see Drain.
	slots chan struct{}
}

// NewPlugin returns the hooks around adjuster. stop is called for each
// container that must be stopped because it runs without what it was promised;
// it must not block.
func NewPlugin(adjuster *Adjuster, stop func(pod, containerID string)) *Plugin {
	return &Plugin{
		adjuster: adjuster, stop: stop, log: adjuster.Log, timeout: hookTimeout,
		slots: make(chan struct{}, maxWorkers),
		guard: NewGuard(adjuster.OS, adjuster.Log),
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
	defer p.done(hookSynchronize, time.Now())
	names := map[string]string{}
	for _, pod := range pods {
		names[pod.GetId()] = pod.GetNamespace() + "/" + pod.GetName()
	}
	for _, c := range missed(p.adjuster.OS, containers) {
		if decision.Delivered(p.adjuster.Store, p.adjuster.OS, c.GetEnv(), c.GetId()) {
			continue
		}
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
		if unadjusted(os, c) {
			list = append(list, c)
		}
	}
	return list
}

// CreateContainer answers with the adjustment for a container that holds an
// allocation.
func (p *Plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	defer p.done(hookCreate, time.Now())
	adjustment, err := p.adjust(ctx, pod, container)
	if err != nil {
		refused(p.log, p.Observer, byPlugin, describe(p.adjuster.OS, pod, container), err)
	}
	return adjustment, nil, err
}

func (p *Plugin) done(hook string, began time.Time) {
	orNobody(p.Observer).HookDone(hook, time.Since(began))
}

func (p *Plugin) adjust(ctx context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, error) {
	select {
	case p.slots <- struct{}{}:
	default:
		return nil, describe(p.adjuster.OS, pod, container).Refuse(errStuck)
	}
	type answer struct {
		adjustment *api.ContainerAdjustment
		err        error
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	// Reading a file cannot be called off, so the work has to be left behind
	// when it takes too long.
	answers := make(chan answer, 1)
	go func() {
		defer func() { <-p.slots }()
		adjustment, err := p.adjuster.Adjust(ctx, pod, container)
		answers <- answer{adjustment, err}
	}()
	select {
	case a := <-answers:
		return a.adjustment, a.err
	case <-ctx.Done():
		return nil, describe(p.adjuster.OS, pod, container).Refuse(
			fmt.Errorf("%w (waited %s); it is tried again", errTooSlow, time.Since(began).Round(time.Millisecond)))
	}
}

// StartContainer refuses a container that was created without its adjustment.
func (p *Plugin) StartContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	defer p.done(hookStart, time.Now())
	err := p.guard.check(pod, container)
	if err != nil {
		refused(p.log, p.Observer, byPlugin, describe(p.adjuster.OS, pod, container), err)
	}
	return err
}

// Alive returns why the plugin does not work any more, nil when it does.
func (p *Plugin) Alive() error {
	if len(p.slots) == cap(p.slots) {
		return errStuck
	}
	return nil
}

// Drain waits until no hook is at work, so that what the runtime waits for is
// answered before the connection goes. It does not wait for longer than a hook
// may take: what is at work then hangs, and has been answered for.
func (p *Plugin) Drain() {
	for deadline := time.Now().Add(p.timeout); len(p.slots) > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}

// Guard is an NRI plugin of its own that does one thing: it refuses the start
// of a container that holds an allocation and was created without its
// adjustment. It asks neither files nor anybody else, and runs in another
// process than [Plugin], so that a runtime which has dropped that one for not
// answering still finds this one.
type Guard struct {
	os  ocispec.OS
	log logrus.FieldLogger
	// Observer is told what the hook does. nil when nobody wants to know.
	Observer Observer
}

// NewGuard returns a guard over containers of the given operating system.
func NewGuard(os ocispec.OS, log logrus.FieldLogger) *Guard { return &Guard{os: os, log: log} }

// StartContainer is called when the container is made and before its process
// runs.
func (g *Guard) StartContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	began := time.Now()
	err := g.check(pod, container)
	if err != nil {
		refused(g.log, g.Observer, byGuard, describe(g.os, pod, container), err)
	}
	orNobody(g.Observer).HookDone(hookStart, time.Since(began))
	return err
}

func (g *Guard) check(pod *api.PodSandbox, container *api.Container) error {
	if !unadjusted(g.os, container) {
		return nil
	}
	return describe(g.os, pod, container).Refuse(decision.Because(decision.ReasonUnadjusted,
		errors.New("it holds a GPU and was created without it, because the NRI plugin did not answer; "+
			"it is created again; if this goes on, see the log of directx-nri on this node")))
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
