package nri

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/bounded"
	"github.com/directx-nri/directx-nri/internal/cri"
	"github.com/directx-nri/directx-nri/internal/metrics"
	"github.com/directx-nri/directx-nri/internal/paths"
)

var (
	errUnregistered = errors.New("not registered with the container runtime")
	errTooSlow      = decision.WithReason(decision.ReasonSlow,
		errors.New("reading the allocation records or the driver's files of this node took too long"))
	errOverdue = decision.WithReason(decision.ReasonSlow, errors.New("an earlier decision still waits for the disk or the driver's files"))
)

// hookTimeout is how long a decision may take. The runtime drops a plugin that has not answered a hook
// within 2 s and continues without it. Then the interlock makes the container's start fail, with a
// message that does not name the cause.
const hookTimeout = 1200 * time.Millisecond

// Config configures a [Plugin].
type Config struct {
	// Socket is the path of the runtime's NRI socket.
	Socket string
	// Index is a number from 00 to 99. The runtime calls plugins in the order of their indices.
	Index string
	// CRISocket is the path of containerd's CRI socket, "" for the default: see [paths.CRI].
	CRISocket string
	// StateDir has the node policy and the allocation records.
	StateDir string
	// Files reads the node's files.
	Files   decision.Files
	Metrics *metrics.Metrics
	// Log is set as the node policy has it, at each decision.
	Log *logrus.Logger
}

// Plugin is the NRI plugin.
type Plugin struct {
	config Config
	// readRuntime returns the configuration of the running containerd, or an error if it is unknown or a
	// registration can crash containerd.
	readRuntime   func(context.Context) (cri.Config, error)
	retryInterval time.Duration // shorter in tests

	overdue atomic.Int64 // decisions that have exceeded hookTimeout and still run

	notReady atomic.Pointer[error] // why the plugin cannot adjust containers, to nil if it can
}

// NewPlugin returns a plugin. It answers after [Plugin.Run] has registered it.
func NewPlugin(c Config) *Plugin {
	p := &Plugin{
		config:        c,
		readRuntime:   func(ctx context.Context) (cri.Config, error) { return readRuntime(ctx, paths.CRI(c.CRISocket)) },
		retryInterval: retryInterval,
	}
	p.notReady.Store(&errUnregistered)
	return p
}

// createContainer returns the adjustment of a container that has an allocation within hookTimeout. Reading a file cannot
// be canceled, so a decision that takes longer continues in the background. For a container that requests nothing,
// createContainer returns nil, reads no files and does not wait for others.
func (p *Plugin) createContainer(
	ctx context.Context, runtime cri.Config, pod *api.PodSandbox, container *api.Container,
) (adjustment *api.ContainerAdjustment, err error) {
	defer func(began time.Time) {
		p.config.Metrics.Hooks.WithLabelValues().Observe(time.Since(began).Seconds())
	}(time.Now())
	ctx, cancel := context.WithTimeoutCause(ctx, hookTimeout, errTooSlow)
	defer cancel()
	request, ok := decision.ReadRequest(containerOf(pod, container)) // Its time counts, too.
	if !ok {
		return nil, nil
	}
	done := make(chan struct{})
	adjustment, err = bounded.Call(ctx, func(ctx context.Context) (*api.ContainerAdjustment, error) {
		defer close(done)
		return p.decide(ctx, runtime, pod, container, request)
	})
	if ctx.Err() != nil {
		p.overdue.Add(1)
		go func() {
			<-done
			p.overdue.Add(-1)
		}()
	}
	if err != nil {
		var reason decision.Reason
		reason, err = request.Container.Refuse(err)
		request.Container.LogRefusal(p.config.Log, reason, err)
		p.config.Metrics.Refusals.WithLabelValues(string(reason)).Inc()
	}
	return adjustment, err
}

// decide decides without a time limit. While a decision is overdue, all other requests are refused at once: the runtime
// calls one hook at a time, so each wait delays containers that request nothing, too. Pods of some handlers of the
// runtime, such as those of Kata Containers or gVisor, would run without their GPUs.
func (p *Plugin) decide(
	ctx context.Context, runtime cri.Config, pod *api.PodSandbox, container *api.Container, request decision.Request,
) (*api.ContainerAdjustment, error) {
	if err := runtime.CheckHandler(handlerOf(pod), "linux"); err != nil {
		return nil, decision.WithReason(decision.ReasonHandler, err)
	}
	if err := p.CheckAlive(); err != nil {
		return nil, err
	}
	decider, err := decision.Open(p.config.StateDir, "linux", p.config.Files, p.config.Log)
	if err != nil {
		return nil, err
	}
	outcome, err := decider.Decide(ctx, request)
	if err != nil {
		return nil, err
	}
	return newAdjustment(outcome.Edits, container.GetMounts()), decider.Bind(ctx, request, outcome)
}

func containerOf(pod *api.PodSandbox, container *api.Container) decision.Container {
	return decision.Container{
		OS: "linux", Name: container.GetName(), Env: container.GetEnv(),
		Pod:         &decision.Pod{UID: pod.GetUid(), Namespace: pod.GetNamespace(), Name: pod.GetName()},
		Annotations: container.GetAnnotations(), PodAnnotations: pod.GetAnnotations(),
		Interlock: slices.ContainsFunc(container.GetMounts(), func(m *api.Mount) bool {
			return m.GetDestination() == allocation.InterlockMount && m.GetSource() == allocation.InterlockSource
		}),
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

// CheckAlive returns an error while a decision is overdue.
func (p *Plugin) CheckAlive() error {
	if p.overdue.Load() > 0 {
		return errOverdue
	}
	return nil
}

// CheckReady returns an error while the plugin is not registered or a decision is overdue, or if the runtime has
// no handler whose containers can have GPUs.
func (p *Plugin) CheckReady(context.Context) error {
	return cmp.Or(p.CheckAlive(), *p.notReady.Load())
}
