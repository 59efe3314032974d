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
	// Fits returns an error if a registration can crash the runtime. It is called if the one
	// before was lost before Synchronize had ended.
	Fits func(context.Context) error
	Log  logrus.FieldLogger

	retryInterval time.Duration // shorter in tests
}

const (
	// retryInterval is the pause between attempts to register. Each one in a row that is lost
	// before Synchronize has ended makes it 8 times as long, up to maxRetryInterval: it may
	// have crashed the runtime.
	retryInterval    = 500 * time.Millisecond
	maxRetryInterval = 5 * time.Minute
	// fitsTimeout bounds a call of Fits.
	fitsTimeout = 10 * time.Second
	// warnInterval is the interval of warnings about an unreachable runtime.
	warnInterval = time.Minute
	// answerTimeout is how long answers are waited for when the program ends. The
	// runtime waits no longer.
	answerTimeout = 2 * time.Second
)

var (
	errLost           = errors.New("connection lost")
	errUnsynchronized = errors.New("containerd crashed or closed the connection while it sent its pods and containers to the plugin; see its log")
)

// Run registers the plugin, again whenever the connection is lost, until ctx
// ends. Then it returns nil.
func (r *Runner) Run(ctx context.Context) error {
	var warned time.Time
	losses := 0 // in a row, before Synchronize had ended
	for {
		err := r.attempt(ctx, losses > 0)
		if ctx.Err() != nil {
			return nil
		}
		why := cmp.Or(err, errLost)
		switch {
		case errors.Is(err, errUnsynchronized):
			losses++
			r.Plugin.metrics.SynchronizeLosses.WithLabelValues().Inc()
		case err == nil:
			losses = 0
		}
		if losses == 0 {
			why = fmt.Errorf("%w: is containerd running, and is NRI enabled in its configuration?", why)
		}
		why = fmt.Errorf("%w on %s: %w", errUnregistered, r.Socket, why)
		r.Plugin.unregistered.Store(&why)
		level := logrus.DebugLevel
		if err == nil || time.Since(warned) > warnInterval {
			level, warned = logrus.WarnLevel, time.Now()
		}
		r.Log.WithError(why).Log(level, "Containers that request a GPU do not start, retrying")
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

// attempt is a session, after Fits if the last one was lost.
func (r *Runner) attempt(ctx context.Context, lost bool) error {
	if lost {
		bounded, cancel := context.WithTimeout(ctx, fitsTimeout)
		defer cancel()
		if err := r.Fits(bounded); err != nil {
			return err
		}
	}
	return r.session(ctx)
}

// session registers the plugin once and returns when the connection is lost: nil
// if the plugin was registered and synchronized.
func (r *Runner) session(ctx context.Context) (err error) {
	// Not all of the stub's ways to end are reliable. Closing its connection is.
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", r.Socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	// The stub passes the context of Start to hooks. A hook that is at work when ctx
	// ends must still answer, unless the connection is lost.
	connected, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	defer disconnect()
	peer, err := localgrpc.PeerPID(conn)
	if err != nil {
		return fmt.Errorf("find the process behind %s: %w", r.Socket, err)
	}
	h := newHooks(r.Plugin, peer)
	defer func() {
		if h.synchronizing.Load() {
			err = errUnsynchronized
		}
	}()
	watched := &watchedConn{Conn: conn, lost: disconnect}
	plugin, err := stub.New(h,
		stub.WithConnection(watched),
		stub.WithPluginName(r.Name), stub.WithPluginIdx(r.Index),
		stub.WithOnClose(disconnect),
		stub.WithLogger(stubLogger{r.Log}),
		// Newer runtimes fail the container whose adjustment is lost; others ignore it.
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true}),
		stub.WithTTRPCOptions(
			[]ttrpc.ClientOpts{ttrpc.WithUnaryClientInterceptor(h.awaitConfigure)},
			[]ttrpc.ServerOpt{ttrpc.WithUnaryServerInterceptor(watched.count)}),
	)
	if err != nil {
		return fmt.Errorf("create NRI stub: %w", err)
	}
	keep := context.AfterFunc(ctx, disconnect)
	defer keep()
	if err := plugin.Start(connected); err != nil {
		return err
	}
	defer plugin.Stop()
	if !keep() {
		return ctx.Err()
	}
	select {
	case <-h.synchronized:
	case <-connected.Done():
		return nil
	case <-ctx.Done():
		return nil
	}
	r.Plugin.unregistered.Store(nil)
	r.Log.WithField("socket", r.Socket).Info("Registered with the container runtime")
	select {
	case <-connected.Done():
	case <-ctx.Done():
		r.Plugin.unregistered.Store(&errUnregistered)
		watched.waitAnswers()
	}
	return nil
}

// watchedConn is the connection to the runtime. It calls lost when it has ended, and
// counts the calls of hooks, whose answers the stub does not wait for when it stops.
type watchedConn struct {
	net.Conn
	lost func()

	unanswered atomic.Int64 // calls without an answer
	returned   atomic.Int64 // those whose hook has returned

	// The stub writes each message in two parts, one message at a time.
	second   bool
	answered int64 // calls that the message answers
}

// Read implements [net.Conn].
func (c *watchedConn) Read(data []byte) (int, error) {
	n, err := c.Conn.Read(data)
	if err != nil {
		c.lost()
	}
	return n, err
}

// Write implements [net.Conn].
func (c *watchedConn) Write(data []byte) (int, error) {
	if !c.second {
		c.answered = c.returned.Swap(0)
	}
	n, err := c.Conn.Write(data)
	if c.second {
		c.unanswered.Add(-c.answered)
	}
	c.second = !c.second
	return n, err
}

// count counts a call of a hook.
func (c *watchedConn) count(ctx context.Context, unmarshal ttrpc.Unmarshaler, _ *ttrpc.UnaryServerInfo, hook ttrpc.Method) (any, error) {
	c.unanswered.Add(1)
	defer c.returned.Add(1)
	return hook(ctx, unmarshal)
}

// waitAnswers waits until the runtime has an answer to each call, but no longer than it
// waits itself.
func (c *watchedConn) waitAnswers() {
	for deadline := time.Now().Add(answerTimeout); c.unanswered.Load() > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}

// hooks are the plugin's for one registration.
type hooks struct {
	*Plugin
	peer int // the runtime's process
	// configured and synchronized are closed by the runtime's first calls.
	configured, synchronized           chan struct{}
	closeConfigured, closeSynchronized func()

	synchronizing atomic.Bool // between them
}

func newHooks(p *Plugin, peer int) *hooks {
	h := &hooks{Plugin: p, peer: peer, configured: make(chan struct{}), synchronized: make(chan struct{})}
	h.closeConfigured = sync.OnceFunc(func() { close(h.configured) })
	h.closeSynchronized = sync.OnceFunc(func() { close(h.synchronized) })
	return h
}

// awaitConfigure makes a registration last until the runtime has configured the plugin.
// The stub's Start would wait for that forever, also without a connection (NRI v0.12.5).
func (h *hooks) awaitConfigure(ctx context.Context, request *ttrpc.Request, response *ttrpc.Response, _ *ttrpc.UnaryClientInfo, invoke ttrpc.Invoker) error {
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

// Configure implements the interface of the stub, which derives the events from the
// hooks that there are.
func (h *hooks) Configure(context.Context, string, string, string) (api.EventMask, error) {
	h.synchronizing.Store(true)
	h.closeConfigured()
	return 0, nil
}

// Synchronize implements the interface of the stub. The runtime has accepted the
// plugin. Existing containers need nothing: the interlock keeps those from starting
// that were not adjusted.
func (h *hooks) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	h.connect(h.peer)
	h.synchronizing.Store(false)
	h.closeSynchronized()
	return nil, nil
}

// stubLogger logs the stub's messages. Informational ones are for debugging:
// [Runner] logs what matters.
type stubLogger struct{ log logrus.FieldLogger }

func (l stubLogger) Debugf(_ context.Context, f string, args ...any) { l.log.Debugf(f, args...) }
func (l stubLogger) Infof(_ context.Context, f string, args ...any)  { l.log.Debugf(f, args...) }
func (l stubLogger) Warnf(_ context.Context, f string, args ...any)  { l.log.Warnf(f, args...) }
func (l stubLogger) Errorf(_ context.Context, f string, args ...any) { l.log.Errorf(f, args...) }
