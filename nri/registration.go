package nri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"
	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/internal/cri"
	"github.com/directx-nri/directx-nri/internal/errlog"
)

const pluginName = "directx"

const (
	// retryInterval is the delay between attempts to register. An attempt that is lost before
	// Synchronize has ended may have crashed the runtime in spite of the check: each consecutive one makes
	// the delay 8 times as long, up to maxRetryInterval.
	retryInterval    = 500 * time.Millisecond
	maxRetryInterval = 5 * time.Minute
	// readTimeout bounds a call of readRuntime.
	readTimeout = 10 * time.Second
)

var (
	// errConnectionLost ends a session in which the plugin was registered.
	errConnectionLost = errors.New("connection lost")
	errUnsynchronized = errors.New("containerd crashed or closed the connection while it sent its pods and containers to the plugin; see its log")
)

// Run registers the plugin, and registers it again whenever the connection is lost, until ctx ends: the
// runtime does not connect to a plugin again, and drops a plugin that was slow once.
func (p *Plugin) Run(ctx context.Context) {
	var lastErr errlog.LastError
	losses := 0 // in a row, before Synchronize had ended
	for {
		err := p.runSession(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case errors.Is(err, errUnsynchronized):
			losses++
			p.config.Metrics.SynchronizeLosses.WithLabelValues().Inc()
		case errors.Is(err, errConnectionLost):
			losses, lastErr = 0, ""
		}
		delay := retryDelay(p.retryInterval, losses)
		if errors.Is(err, cri.ErrTooLarge) {
			delay = max(delay, retryDelay(p.retryInterval, 1)) // Each check asks containerd about all containers.
		}
		err = fmt.Errorf("%w on %s: %w", errUnregistered, p.config.Socket, cri.WithNRIRemedy(err))
		p.notReady.Store(&err)
		if lastErr.Changed(err) {
			p.config.Log.WithError(err).Warn("Containers that request a GPU do not start, retrying")
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
	}
}

// retryDelay returns how long to wait after that many losses in a row.
func retryDelay(interval time.Duration, losses int) time.Duration {
	return min(interval<<(3*min(losses, 4)), maxRetryInterval)
}

const (
	// drainTimeout is how long hooks may still run when the program ends: the runtime waits no longer
	// for their answers.
	drainTimeout = 2 * time.Second
	// drainInterval is enough for the stub to write the answer of a hook that has returned.
	drainInterval = 50 * time.Millisecond
)

// runSession registers the plugin once, unless that can crash the runtime. It returns when the connection is
// lost, with [errConnectionLost] if the plugin was registered.
func (p *Plugin) runSession(ctx context.Context) error {
	// A containerd whose NRI is off is not asked again and again.
	if _, err := os.Stat(p.config.Socket); err != nil {
		return err
	}
	readCtx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	runtime, err := p.readRuntime(readCtx)
	if err != nil {
		return err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", p.config.Socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	hooks := newSessionHooks(p, runtime)
	// The stub passes the context of Start to hooks. That context ends when the connection is lost. It
	// does not end with ctx, so that running hooks can still answer.
	connCtx, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	defer disconnect()
	session, err := stub.New(hooks,
		stub.WithConnection(conn), stub.WithOnClose(disconnect),
		stub.WithPluginName(pluginName), stub.WithPluginIdx(p.config.Index),
		stub.WithLogger(stubLogger{p.config.Log}),
		// Newer runtimes then fail a container whose adjustment is lost. Older ones ignore the policy.
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true}),
		stub.WithTTRPCOptions([]ttrpc.ClientOpts{ttrpc.WithUnaryClientInterceptor(hooks.waitForConfigure)}, nil),
	)
	if err != nil {
		return fmt.Errorf("create NRI stub: %w", err)
	}
	cancelDisconnect := context.AfterFunc(ctx, disconnect) // While the plugin registers, no hook runs.
	defer cancelDisconnect()
	if err := session.Start(connCtx); err != nil {
		select {
		case <-hooks.configured: // The runtime's answer to the registration was lost with the connection.
			return hooks.lossError()
		default:
			return err
		}
	}
	defer session.Stop()
	if !cancelDisconnect() {
		return ctx.Err()
	}
	select {
	case <-hooks.synchronized:
	case <-connCtx.Done(): // Start has returned, so the runtime has called Configure.
		return hooks.lossError()
	case <-ctx.Done():
		return ctx.Err()
	}
	notReady := runtime.Check("linux")
	p.notReady.Store(&notReady)
	p.config.Log.WithField("socket", p.config.Socket).Info("Registered with the container runtime")
	select {
	case <-connCtx.Done():
	case <-ctx.Done():
		p.notReady.Store(&errUnregistered)
		hooks.drain()
	}
	return errConnectionLost
}

// readRuntime is the field of [Plugin].
func readRuntime(ctx context.Context, criSocket string) (cri.Config, error) {
	if err := cri.CheckSynchronizeSize(ctx, criSocket); err != nil {
		return cri.Config{}, err
	}
	config, err := cri.ReadConfig(ctx, criSocket)
	if err != nil {
		return config, fmt.Errorf("%w; is --cri-socket %s correct?", err, criSocket)
	}
	return config, nil
}

// sessionHooks are the hooks that the stub finds for one session, and the session's state.
type sessionHooks struct {
	plugin  *Plugin
	runtime cri.Config
	// configured and synchronized are closed when the runtime calls the hooks Configure and
	// Synchronize, which it does in this order, once for each connection.
	configured, synchronized chan struct{}

	inFlight atomic.Int64 // calls of CreateContainer
}

func newSessionHooks(p *Plugin, runtime cri.Config) *sessionHooks {
	return &sessionHooks{plugin: p, runtime: runtime, configured: make(chan struct{}), synchronized: make(chan struct{})}
}

// lossError returns the error for a connection that was lost after the runtime had called Configure.
func (s *sessionHooks) lossError() error {
	select {
	case <-s.synchronized:
		return errConnectionLost
	default:
		return errUnsynchronized
	}
}

// waitForConfigure is an interceptor of the stub's call that registers the plugin. It returns after
// the runtime has called Configure: the stub's Start, which waits for Configure next, would wait
// forever if the connection is lost (NRI v0.12.5).
func (s *sessionHooks) waitForConfigure(
	ctx context.Context, request *ttrpc.Request, response *ttrpc.Response, _ *ttrpc.UnaryClientInfo, invoke ttrpc.Invoker,
) error {
	if err := invoke(ctx, request, response); err != nil {
		return err
	}
	select {
	case <-s.configured:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the runtime does not complete the registration: %w", ctx.Err())
	}
}

// Configure implements [stub.ConfigureInterface]. Without a mask of events, the stub subscribes
// to those of all hooks that exist.
func (s *sessionHooks) Configure(context.Context, string, string, string) (api.EventMask, error) {
	close(s.configured)
	return 0, nil
}

// Synchronize implements [stub.SynchronizeInterface]. The runtime has accepted the plugin. Existing
// containers need nothing: because of the interlock, none of them runs without its adjustment.
func (s *sessionHooks) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	close(s.synchronized)
	return nil, nil
}

// CreateContainer implements [stub.CreateContainerInterface].
func (s *sessionHooks) CreateContainer(
	ctx context.Context, pod *api.PodSandbox, container *api.Container,
) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	s.inFlight.Add(1)
	defer s.inFlight.Add(-1)
	adjusted, err := s.plugin.createContainer(ctx, s.runtime, pod, container)
	if err != nil {
		err = errors.New(errlog.ErrorLine(err)) // The runtime gets the text alone.
	}
	return adjusted, nil, err
}

// drain waits until the runtime has the answers of the calls in flight, because the stub does not
// wait for them when it stops.
func (s *sessionHooks) drain() {
	for range drainTimeout / drainInterval {
		idle := s.inFlight.Load() == 0
		time.Sleep(drainInterval)
		if idle {
			return
		}
	}
}

// stubLogger logs the stub's messages. Informational ones are for debugging:
// [Plugin.Run] logs what matters.
type stubLogger struct{ log logrus.FieldLogger }

func (l stubLogger) Debugf(_ context.Context, f string, args ...any) { l.log.Debugf(f, args...) }
func (l stubLogger) Infof(_ context.Context, f string, args ...any)  { l.log.Debugf(f, args...) }
func (l stubLogger) Warnf(_ context.Context, f string, args ...any)  { l.log.Warnf(f, args...) }
func (l stubLogger) Errorf(_ context.Context, f string, args ...any) { l.log.Errorf(f, args...) }
