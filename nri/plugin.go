package nri

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/cri"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/metrics"
	"github.com/directx-nri/directx-nri/internal/paths"
)

var (
	errUnregistered = errors.New("not registered with the container runtime")
	errTooSlow      = decision.WithReason(decision.ReasonSlow,
		errors.New("reading the allocation records, the driver's files or the runtime handlers of this node took too long"))
	errOverdue = decision.WithReason(decision.ReasonSlow, errors.New("an earlier decision still waits for the disk, the driver's files or containerd"))
)

// readyTimeout bounds the questions of [Plugin.CheckReady] to containerd. It is less than the timeout of
// package readiness, after which the caller learns only that the plugin does not answer.
const readyTimeout = 600 * time.Millisecond

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
	// NewDecider returns a new decider with the node policy in force. It is called for each container
	// that requests a GPU, and by [Plugin.CheckReady].
	NewDecider func() (*decision.Decider, error)
	Metrics    *metrics.Metrics
	Log        logrus.FieldLogger
}

// Plugin is the NRI plugin.
type Plugin struct {
	config Config
	// readRunning returns the configuration of the containerd with this process ID: see [readRunning].
	readRunning func(ctx context.Context, peerPID int) (cri.Config, error)
	peer        atomic.Pointer[peer]
	// checkSynchronize returns an error if a registration can crash the runtime.
	checkSynchronize func(context.Context) error
	retryInterval    time.Duration // shorter in tests

	overdue atomic.Int64 // decisions that have exceeded hookTimeout and still run

	unregisteredErr atomic.Pointer[error] // why the plugin is not registered, nil if it is
}

// NewPlugin returns a plugin. It answers after [Plugin.Run] has registered it.
func NewPlugin(c Config) *Plugin {
	p := &Plugin{
		config: c,
		readRunning: func(ctx context.Context, peerPID int) (cri.Config, error) {
			return readRunning(ctx, c.Socket, paths.CRI(c.CRISocket), peerPID)
		},
		checkSynchronize: func(ctx context.Context) error { return cri.CheckSynchronizeSize(ctx, paths.CRI(c.CRISocket)) },
		retryInterval:    retryInterval,
	}
	p.peer.Store(&peer{})
	p.unregisteredErr.Store(&errUnregistered)
	return p
}

// createContainer returns the adjustment of a container that has an allocation.
func (p *Plugin) createContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, error) {
	began := time.Now()
	defer func() { p.config.Metrics.Hooks.WithLabelValues().Observe(time.Since(began).Seconds()) }()
	c := containerOf(pod, container)
	adjusted, err := p.adjust(ctx, c, handlerOf(pod), container.GetMounts())
	if err != nil {
		err = c.RefusalError(err)
		decision.LogRefusal(p.config.Log, c, err)
		p.config.Metrics.Refusals.WithLabelValues(string(decision.ReasonOf(err))).Inc()
		return nil, err
	}
	return adjusted, nil
}

// recoverPanic sets err if the function that defers the call panics.
func (p *Plugin) recoverPanic(err *error) {
	if cause := recover(); cause != nil {
		*err = errlog.PanicError(p.config.Log, cause)
	}
}

func containerOf(pod *api.PodSandbox, container *api.Container) decision.Container {
	return decision.Container{
		OS: "linux", Pod: &decision.Pod{UID: pod.GetUid(), Namespace: pod.GetNamespace(), Name: pod.GetName()},
		Name: container.GetName(), Env: container.GetEnv(),
		Annotations: container.GetAnnotations(), PodAnnotations: pod.GetAnnotations(),
		Interlock: slices.ContainsFunc(container.GetMounts(), func(m *api.Mount) bool {
			return m.GetDestination() == allocation.InterlockMount
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

// adjust returns the adjustment of c, nil if c gets nothing. c has these mounts, and handler runs its
// pod. If c requests nothing, adjust reads no files and does not wait for other containers.
//
// Otherwise, adjust decides within hookTimeout. Reading a file cannot be canceled, so a decision that
// takes longer continues in the background. Until it ends, all other requests are refused at once: the
// runtime calls one hook at a time, so each wait delays containers that request nothing, too.
func (p *Plugin) adjust(
	ctx context.Context, c decision.Container, handler string, mounts []*api.Mount,
) (adjusted *api.ContainerAdjustment, err error) {
	defer p.recoverPanic(&err)
	request, ok := decision.ReadRequest(c)
	if !ok {
		return nil, nil
	}
	if err := p.CheckAlive(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, hookTimeout, errTooSlow)
	defer cancel()
	var decided *api.ContainerAdjustment // These two are read only after done is closed.
	var decideErr error
	done := make(chan struct{})
	go func() {
		defer close(done)
		decided, decideErr = p.decide(ctx, request, handler, mounts)
	}()
	select {
	case <-done:
		return decided, decideErr
	case <-ctx.Done():
		p.overdue.Add(1)
		go func() {
			<-done
			p.overdue.Add(-1)
		}()
		return nil, context.Cause(ctx) // errTooSlow, unless the connection to the runtime has ended
	}
}

// decide decides without a time limit.
func (p *Plugin) decide(
	ctx context.Context, request decision.Request, handler string, mounts []*api.Mount,
) (adjusted *api.ContainerAdjustment, err error) {
	defer p.recoverPanic(&err)
	decider, err := p.config.NewDecider()
	if err != nil {
		return nil, err
	}
	if err := p.checkPodHandler(ctx, handler); err != nil {
		return nil, err
	}
	outcome, err := decider.Decide(ctx, request)
	if err != nil {
		return nil, err
	}
	adjustment := newAdjustment(outcome.Edits, mounts)
	return adjustment, decider.Bind(ctx, request, outcome)
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
	if _, err := p.config.NewDecider(); err != nil {
		return err
	}
	config, err := p.runningConfig(ctx)
	if err != nil {
		return err
	}
	return config.Check("linux")
}
