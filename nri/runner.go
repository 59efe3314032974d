package nri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"
	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
)

// Runner keeps a plugin registered with the runtime. The runtime neither
// restarts nor redials a plugin, and drops one that was slow once.
type Runner struct {
	// Socket is the path of the runtime's NRI socket.
	Socket string
	// Name and Index identify the plugin. The runtime calls plugins in the order of
	// their indices, 00 to 99.
	Name, Index string
	Plugin      *Plugin
	// CheckSynchronize returns an error if a registration can crash the runtime. It is called
	// before an attempt if the last one was lost before Synchronize had ended.
	CheckSynchronize func(context.Context) error
	Log              logrus.FieldLogger

	retryInterval time.Duration // shorter in tests
}

const (
	// retryInterval is the pause between attempts to register. An attempt that is lost before
	// Synchronize has ended may have crashed the runtime: each in a row makes the pause 8 times
	// as long, up to maxRetryInterval.
	retryInterval    = 500 * time.Millisecond
	maxRetryInterval = 5 * time.Minute
	// checkTimeout bounds a call of CheckSynchronize.
	checkTimeout = 10 * time.Second
)

var (
	// errLost is the end of a session in which the plugin was registered.
	errLost           = errors.New("connection lost")
	errUnsynchronized = errors.New("containerd crashed or closed the connection while it sent its pods and containers to the plugin; see its log")
)

// Run registers the plugin, and again whenever the connection is lost. It returns nil when ctx
// ends.
func (r *Runner) Run(ctx context.Context) error {
	var logged errlog.LastError
	losses := 0 // in a row, before Synchronize had ended
	for {
		err := r.attempt(ctx, losses)
		if ctx.Err() != nil {
			return nil
		}
		switch {
		case errors.Is(err, errUnsynchronized):
			losses++
			r.Plugin.metrics.SynchronizeLosses.WithLabelValues().Inc()
		case errors.Is(err, errLost):
			losses, logged = 0, ""
		}
		if losses == 0 {
			err = fmt.Errorf("%w: is containerd running, and is NRI enabled in its configuration?", err)
		}
		err = fmt.Errorf("%w on %s: %w", errUnregistered, r.Socket, err)
		r.Plugin.unregisteredErr.Store(&err)
		if logged.Replace(err) {
			r.Log.WithError(err).Warn("Containers that request a GPU do not start, retrying")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause(cmp.Or(r.retryInterval, retryInterval), losses)):
		}
	}
}

// pause returns how long to wait after that many losses in a row.
func pause(interval time.Duration, losses int) time.Duration {
	return min(interval<<(3*min(losses, 4)), maxRetryInterval)
}

// attempt runs a session, unless that can crash the runtime. Its error is not nil.
func (r *Runner) attempt(ctx context.Context, losses int) error {
	if losses > 0 {
		bounded, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		if err := r.CheckSynchronize(bounded); err != nil {
			return err
		}
	}
	return r.session(ctx)
}

const (
	// finishTimeout is how long hooks may still run when the program ends: as long as the
	// runtime waits for their answers.
	finishTimeout = 2 * time.Second
	// answerTime is how long the stub may take to write the answer of a hook that has returned.
	answerTime = 50 * time.Millisecond
)

// session registers the plugin once. It returns when the connection is lost, with [errLost] if the
// plugin was registered.
func (r *Runner) session(ctx context.Context) (err error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", r.Socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	peer, err := localgrpc.PeerPID(conn)
	if err != nil {
		return fmt.Errorf("find the process behind %s: %w", r.Socket, err)
	}
	h := newSessionHooks(r.Plugin, peer)
	defer func() {
		if h.synchronizing.Load() {
			err = errUnsynchronized
		}
	}()
	// The stub passes the context of Start to hooks. A hook that runs when ctx ends must
	// still answer, unless the connection is lost.
	connected, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	defer disconnect()
	plugin, err := stub.New(h,
		stub.WithConnection(&watchedConn{Conn: conn, closed: disconnect}),
		stub.WithPluginName(r.Name), stub.WithPluginIdx(r.Index),
		stub.WithLogger(stubLogger{r.Log}),
		// Newer runtimes fail the container whose adjustment is lost; others ignore it.
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true}),
		stub.WithTTRPCOptions([]ttrpc.ClientOpts{ttrpc.WithUnaryClientInterceptor(h.awaitConfigure)}, nil),
	)
	if err != nil {
		return fmt.Errorf("create NRI stub: %w", err)
	}
	stopWatching := context.AfterFunc(ctx, disconnect) // while the plugin registers
	defer stopWatching()
	if err := plugin.Start(connected); err != nil {
		return err
	}
	defer plugin.Stop()
	if !stopWatching() {
		return ctx.Err()
	}
	select {
	case <-h.synchronized:
	case <-connected.Done():
		return errLost
	case <-ctx.Done():
		return ctx.Err()
	}
	r.Plugin.unregisteredErr.Store(nil)
	r.Log.WithField("socket", r.Socket).Info("Registered with the container runtime")
	select {
	case <-connected.Done():
	case <-ctx.Done():
		r.Plugin.unregisteredErr.Store(&errUnregistered)
		h.finish()
	}
	return errLost
}

// watchedConn calls closed when either end has closed the connection. The stub reports that only
// after it has started.
type watchedConn struct {
	net.Conn
	closed func()
}

// Close implements [net.Conn]. The stub calls it when it cannot continue, for example after a
// malformed frame, and then reads no more.
func (c *watchedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// Read implements [net.Conn].
func (c *watchedConn) Read(data []byte) (int, error) {
	n, err := c.Conn.Read(data)
	if err != nil {
		c.closed()
	}
	return n, err
}

// sessionHooks are the hooks that the stub finds for one session, and the session's state.
type sessionHooks struct {
	*Plugin
	peer int // the runtime's process
	// configured and synchronized are closed when the runtime calls the hooks Configure and
	// Synchronize, which it does in this order.
	configured, synchronized           chan struct{}
	closeConfigured, closeSynchronized func()

	synchronizing atomic.Bool  // between the two
	running       atomic.Int64 // calls of CreateContainer
}

func newSessionHooks(p *Plugin, peer int) *sessionHooks {
	h := &sessionHooks{Plugin: p, peer: peer, configured: make(chan struct{}), synchronized: make(chan struct{})}
	h.closeConfigured = sync.OnceFunc(func() { close(h.configured) })
	h.closeSynchronized = sync.OnceFunc(func() { close(h.synchronized) })
	return h
}

// awaitConfigure makes the stub's call to register the plugin last until the runtime has
// configured it. After that call, the stub's Start waits for Configure forever, also without a
// connection (NRI v0.12.5).
func (h *sessionHooks) awaitConfigure(ctx context.Context, request *ttrpc.Request, response *ttrpc.Response, _ *ttrpc.UnaryClientInfo, invoke ttrpc.Invoker) error {
	if err := invoke(ctx, request, response); err != nil {
		return err
	}
	select {
	case <-h.configured:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the runtime does not complete the registration: %w", ctx.Err())
	}
}

// Configure implements [stub.ConfigureInterface]. Without a mask of events, the stub subscribes
// to those of all hooks that exist.
func (h *sessionHooks) Configure(context.Context, string, string, string) (api.EventMask, error) {
	h.synchronizing.Store(true)
	h.closeConfigured()
	return 0, nil
}

// Synchronize implements [stub.SynchronizeInterface]. The runtime has accepted the plugin.
// Existing containers need nothing: because of the interlock, none of them runs without its
// adjustment.
func (h *sessionHooks) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	h.handlers.reset(h.peer)
	h.synchronizing.Store(false)
	h.closeSynchronized()
	return nil, nil
}

// CreateContainer implements [stub.CreateContainerInterface] with [Plugin.CreateContainer].
func (h *sessionHooks) CreateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	h.running.Add(1)
	defer h.running.Add(-1)
	return h.Plugin.CreateContainer(ctx, pod, container)
}

// finish waits until the runtime has the answers of running hooks: the stub does not wait for
// them when it stops.
func (h *sessionHooks) finish() {
	for deadline := time.Now().Add(finishTimeout); h.running.Load() > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(answerTime)
}

// stubLogger logs the stub's messages. Informational ones are for debugging:
// [Runner] logs what matters.
type stubLogger struct{ log logrus.FieldLogger }

func (l stubLogger) Debugf(_ context.Context, f string, args ...any) { l.log.Debugf(f, args...) }
func (l stubLogger) Infof(_ context.Context, f string, args ...any)  { l.log.Debugf(f, args...) }
func (l stubLogger) Warnf(_ context.Context, f string, args ...any)  { l.log.Warnf(f, args...) }
func (l stubLogger) Errorf(_ context.Context, f string, args ...any) { l.log.Errorf(f, args...) }
