package nri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/sirupsen/logrus"
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
	// Serving is called with true when the plugin is registered and synchronized, and
	// with false when it no longer is.
	Serving func(bool)
	Log     logrus.FieldLogger

	// startTimeout limits a registration, for which the runtime takes up to 10 s. 0 is
	// the default.
	startTimeout time.Duration
}

const (
	// retryInterval is the pause between attempts to register.
	retryInterval = 500 * time.Millisecond
	// warnInterval is the interval of warnings about an unreachable runtime.
	warnInterval = time.Minute
	// flushTime is enough for an answer's way through a Unix socket.
	flushTime = 20 * time.Millisecond
)

var (
	errStartHangs = errors.New("the runtime does not complete the registration")
	errLost       = errors.New("connection lost")
)

// Run registers the plugin, again whenever the connection is lost, until ctx
// ends. Then it returns nil.
func (r *Runner) Run(ctx context.Context) error {
	var warned time.Time
	for {
		err := r.session(ctx)
		if ctx.Err() != nil {
			return nil
		}
		level := logrus.DebugLevel
		if err == nil || time.Since(warned) > warnInterval {
			level, warned = logrus.WarnLevel, time.Now()
		}
		r.Log.WithField("socket", r.Socket).WithError(cmp.Or(err, errLost)).Logf(level,
			"Plugin %s is not registered with the container runtime, retrying: is containerd running, and is NRI enabled in its configuration?", r.Name)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryInterval):
		}
	}
}

// session registers the plugin once and returns when the connection is lost: nil
// if the plugin was registered.
func (r *Runner) session(ctx context.Context) error {
	// Not all of the stub's ways to end are reliable. Closing its connection is.
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", r.Socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	// The stub passes the context of Start to hooks. A hook that is at work when ctx
	// ends must still answer.
	hookContext, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	synchronized, lost := make(chan struct{}), make(chan struct{})
	plugin, err := stub.New(&hooks{r.Plugin, sync.OnceFunc(func() { close(synchronized) })},
		stub.WithConnection(conn),
		stub.WithPluginName(r.Name), stub.WithPluginIdx(r.Index),
		stub.WithOnClose(sync.OnceFunc(func() { close(lost) })),
		stub.WithLogger(stubLogger{r.Log}),
		// Newer runtimes fail the container whose adjustment is lost; others ignore it.
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true}),
	)
	if err != nil {
		return fmt.Errorf("create NRI stub: %w", err)
	}
	// Start never returns if the runtime leaves before it calls Configure. It is left
	// behind then, with its connection closed.
	started := make(chan error, 1)
	go func() { started <- plugin.Start(hookContext) }()
	select {
	case err = <-started:
	case <-time.After(cmp.Or(r.startTimeout, 15*time.Second)):
		err = errStartHangs
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	defer plugin.Stop()
	select {
	case <-synchronized:
	case <-lost:
		return nil
	case <-ctx.Done():
		return nil
	}
	r.Serving(true)
	select {
	case <-lost:
		r.Serving(false)
	case <-ctx.Done():
		r.Serving(false)
		r.Plugin.drain()
		time.Sleep(flushTime) // The stub sends an answer after the hook has returned.
	}
	return nil
}

// hooks are the plugin's for one registration.
type hooks struct {
	*Plugin
	synchronized func()
}

// Synchronize implements the interface of the stub. The runtime has accepted the
// plugin. Existing containers need nothing: the interlock keeps those from starting
// that were not adjusted.
func (h *hooks) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	h.forget()
	h.synchronized()
	return nil, nil
}

// stubLogger logs the stub's messages. Informational ones are for debugging:
// [Runner] logs what matters.
type stubLogger struct{ log logrus.FieldLogger }

func (l stubLogger) Debugf(_ context.Context, f string, args ...any) { l.log.Debugf(f, args...) }
func (l stubLogger) Infof(_ context.Context, f string, args ...any)  { l.log.Debugf(f, args...) }
func (l stubLogger) Warnf(_ context.Context, f string, args ...any)  { l.log.Warnf(f, args...) }
func (l stubLogger) Errorf(_ context.Context, f string, args ...any) { l.log.Errorf(f, args...) }
