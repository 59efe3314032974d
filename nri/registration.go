package nri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
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
	// retryInterval is the delay between attempts to register, and crashRetries the number of such intervals after an
	// attempt that failed: in spite of the check it may have crashed the runtime.
	retryInterval = 500 * time.Millisecond
	crashRetries  = 20
	// readTimeout bounds a call of readRuntime.
	readTimeout = 10 * time.Second
	// answerInterval is enough for the stub to write the answer of a hook that has returned.
	answerInterval = 50 * time.Millisecond
)

var (
	// errConnectionLost ends a session in which the plugin was registered.
	errConnectionLost = errors.New("connection lost")
	// errRegistration ends a session in which the runtime did not complete the registration.
	errRegistration = errors.New("containerd crashed or closed the connection while the plugin registered; see its log")
)

// Run registers the plugin, and registers it again whenever the connection is lost, until ctx ends: the
// runtime does not connect to a plugin again, and drops a plugin that was slow once.
func (p *Plugin) Run(ctx context.Context) {
	var lastErr errlog.LastError
	for {
		err := p.runSession(ctx)
		if ctx.Err() != nil {
			return
		}
		delay := p.retryInterval
		switch {
		case errors.Is(err, errRegistration) || errors.Is(err, cri.ErrTooLarge) || errors.Is(err, context.DeadlineExceeded):
			// Each check asks containerd about all containers.
			delay *= crashRetries
		case errors.Is(err, errConnectionLost):
			lastErr = ""
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
		return fmt.Errorf("%w: %w", errRegistration, err)
	}
	defer session.Stop()
	if !cancelDisconnect() {
		return ctx.Err()
	}
	select {
	case <-hooks.synchronized:
	case <-connCtx.Done():
		return errRegistration
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
		// The stub does not wait for the answers of hooks when it stops. Each returns within hookTimeout. Hooks that
		// come meanwhile answer, too: a newer runtime fails any container whose hook gets no answer.
		hooks.inFlight.Lock()
		hooks.inFlight.Unlock()
		time.Sleep(answerInterval)
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

	inFlight sync.RWMutex // read-locked by calls of CreateContainer
}

func newSessionHooks(p *Plugin, runtime cri.Config) *sessionHooks {
	return &sessionHooks{plugin: p, runtime: runtime, configured: make(chan struct{}), synchronized: make(chan struct{})}
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
	s.inFlight.RLock()
	defer s.inFlight.RUnlock()
	adjusted, err := s.plugin.createContainer(ctx, s.runtime, pod, container)
	if err != nil {
		err = errors.New(errlog.Text(err)) // The runtime gets the text alone.
	}
	return adjusted, nil, err
}

// stubLogger logs the stub's messages. Informational ones are for debugging:
// [Plugin.Run] logs what matters.
type stubLogger struct{ log logrus.FieldLogger }

func (l stubLogger) Debugf(_ context.Context, f string, args ...any) { l.log.Debugf(f, args...) }
func (l stubLogger) Infof(_ context.Context, f string, args ...any)  { l.log.Debugf(f, args...) }
func (l stubLogger) Warnf(_ context.Context, f string, args ...any)  { l.log.Warnf(f, args...) }
func (l stubLogger) Errorf(_ context.Context, f string, args ...any) { l.log.Errorf(f, args...) }
