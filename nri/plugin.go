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
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/metrics"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/ocispec/adjustment"
)

var (
	errUnregistered = errors.New("not registered with the container runtime")
	errTooSlow      = decision.WithReason(decision.ReasonSlow, errlog.WithRemedy(
		errors.New("reading the allocation records, the driver's files or the runtime handlers of this node took too long"),
		"the kubelet retries"))
	errOverdue = decision.WithReason(decision.ReasonSlow, errlog.WithRemedy(
		errors.New("an earlier decision still waits for the disk, the driver's files or containerd"),
		"the kubelet retries"))
)

// readyTimeout bounds [Plugin.CheckReady]. After a second, package readiness would report that the
// plugin does not answer, and not the cause.
const readyTimeout = 600 * time.Millisecond

// Plugin has the hooks of the NRI plugin.
type Plugin struct {
	newDecider func() (*decision.Decider, error)
	handlers   *RuntimeHandlers
	metrics    *metrics.Metrics
	log        logrus.FieldLogger

	budget  budget
	overdue atomic.Int64 // decisions that have exceeded the budget and still run

	unregisteredErr atomic.Pointer[error] // why the plugin is not registered, nil if it is
}

// NewPlugin returns a plugin. newDecider returns a new decider with the node policy in force; it
// is called for each container that requests a GPU.
func NewPlugin(newDecider func() (*decision.Decider, error), handlers *RuntimeHandlers, m *metrics.Metrics, log logrus.FieldLogger) *Plugin {
	p := &Plugin{newDecider: newDecider, handlers: handlers, metrics: m, log: log, budget: budget{size: hookBudget}}
	p.unregisteredErr.Store(&errUnregistered)
	return p
}

// CreateContainer returns the adjustment of a container that has an allocation. A
// container that requests nothing depends on neither files nor other containers.
func (p *Plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) (adjusted *api.ContainerAdjustment, _ []*api.ContainerUpdate, err error) {
	began := time.Now()
	defer func() { p.metrics.Hooks.WithLabelValues("CreateContainer").Observe(time.Since(began).Seconds()) }()
	c := containerOf(pod, container)
	defer p.recoverPanic(c, &err)
	request, ok := decision.ReadRequest(c)
	if !ok {
		return nil, nil, nil
	}
	adjusted, err = p.decide(ctx, request, container.GetMounts())
	if err != nil {
		decision.LogRefusal(p.log, c, err)
		p.metrics.Refusals.WithLabelValues("nri", string(decision.ReasonOf(err))).Inc()
		return nil, nil, err
	}
	return adjusted, nil, nil
}

// recoverPanic sets err to the refusal of c if the function that defers the call panics.
func (p *Plugin) recoverPanic(c decision.Container, err *error) {
	if cause := recover(); cause != nil {
		p.log.WithField("stack", string(debug.Stack())).Error(cause)
		*err = c.RefusalError(fmt.Errorf("%w: %v", decision.ErrInternal, cause))
	}
}

func containerOf(pod *api.PodSandbox, container *api.Container) decision.Container {
	return decision.Container{
		OS:             ocispec.Linux,
		Pod:            &decision.Pod{UID: pod.GetUid(), Namespace: pod.GetNamespace(), Name: pod.GetName(), RuntimeHandler: handlerOf(pod)},
		Name:           container.GetName(),
		Env:            container.GetEnv(),
		Annotations:    container.GetAnnotations(),
		PodAnnotations: pod.GetAnnotations(),
	}
}

// handlerOf returns the name of the handler that runs pod, "" for the default one. For a pod with the
// annotation of untrusted workloads, containerd does not use the handler that it reports to plugins
// (GetSandboxRuntime in
// https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/config/config.go).
func handlerOf(pod *api.PodSandbox) string {
	if pod.GetAnnotations()["io.kubernetes.cri.untrusted-workload"] == "true" {
		return "untrusted"
	}
	return pod.GetRuntimeHandler()
}

// result is the result of a decision.
type result struct {
	adjusted *api.ContainerAdjustment // nil if the container gets nothing
	err      error
}

// decide returns the adjustment of a container with mounts. It decides within the budget. Reading a
// file cannot be canceled, so a decision that takes longer continues in the background. Until it ends,
// other containers are refused at once.
func (p *Plugin) decide(ctx context.Context, request decision.Request, mounts []*api.Mount) (*api.ContainerAdjustment, error) {
	refuse := func(err error) (*api.ContainerAdjustment, error) { return nil, request.Container.RefusalError(err) }
	if err := p.CheckAlive(); err != nil {
		return refuse(err)
	}
	began := time.Now()
	left := p.budget.left(began)
	if left <= 0 {
		return refuse(errTooSlow)
	}
	defer func() { p.budget.use(began, time.Now()) }()
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	results := make(chan result, 1)
	go func() { results <- p.decideUnbounded(ctx, request, mounts) }()
	select {
	case r := <-results:
		return r.adjusted, r.err
	case <-ctx.Done():
		p.overdue.Add(1)
		go func() {
			<-results
			p.overdue.Add(-1)
		}()
		return refuse(errTooSlow)
	}
}

// decideUnbounded decides without a time limit. A panic refuses the container.
func (p *Plugin) decideUnbounded(ctx context.Context, request decision.Request, mounts []*api.Mount) (r result) {
	defer p.recoverPanic(request.Container, &r.err)
	decider, err := p.newDecider()
	if err != nil {
		return result{err: request.Container.RefusalError(err)}
	}
	decider.CheckHandler = p.handlers.check
	r.err = decider.Decide(ctx, request, func(edits ocispec.Edits) error {
		r.adjusted = adjustment.New(edits, mounts)
		return nil
	})
	return r
}

// CheckAlive returns an error while a decision is overdue.
func (p *Plugin) CheckAlive() error {
	if p.overdue.Load() > 0 {
		return errOverdue
	}
	return nil
}

// CheckReady returns an error while the plugin is not registered or cannot adjust containers, or the
// runtime has no handler whose containers can have GPUs.
func (p *Plugin) CheckReady(ctx context.Context) error {
	if err := p.CheckAlive(); err != nil {
		return err
	}
	if err := p.unregisteredErr.Load(); err != nil {
		return *err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	config, err := p.handlers.runningConfig(ctx)
	if err != nil {
		return err
	}
	return config.CheckAnyHandler()
}

// hookBudget is how long decisions may take. The runtime drops a plugin that has not
// answered a hook within 2 s and continues without it. Then the interlock makes the container's
// start fail, with a message that does not name the cause.
const hookBudget = 1200 * time.Millisecond

// budget limits the time of consecutive decisions: the runtime calls one hook at a time, so a
// container that requests nothing can wait for all hooks before its own. A decision uses as much of
// the budget as it takes, and each pause between decisions gives that much back.
type budget struct {
	size time.Duration

	mu   sync.Mutex
	full time.Time // when the whole budget will be available
}

// left returns how long a decision that begins now may take.
func (b *budget) left(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.size - max(0, b.full.Sub(now))
}

// use subtracts the time of a decision.
func (b *budget) use(began, ended time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.full = ended.Add(max(0, b.full.Sub(began)) + ended.Sub(began))
}
