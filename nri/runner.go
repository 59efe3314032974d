package nri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	// Hooks returns the plugin for one registration, a value with methods of the stub
	// package's interfaces. Synchronize is one of them and calls synchronized.
	Hooks func(synchronized func()) any
	// Drain waits a limited time until no hook is at work.
	Drain func()
	// Serving is called with true when the plugin is registered and synchronized, and
	// with false when it no longer is.
	Serving func(bool)
	Log     logrus.FieldLogger

	// StartTimeout limits a registration, for which the runtime takes up to 10 s. 0 is
	// the default.
	StartTimeout time.Duration
	// MinRetry and MaxRetry bound the pause between attempts. 0 are the defaults.
	MinRetry, MaxRetry time.Duration
}

const (
	// warnInterval is the interval of warnings about an unreachable runtime.
	warnInterval = time.Minute
	// flushTime is enough for an answer's way through a Unix socket.
	flushTime = 20 * time.Millisecond
	// releaseTime is how long a Start can take to notice a closed connection.
	releaseTime = 200 * time.Millisecond
)

var errStartHangs = errors.New("the runtime does not complete the registration")

// Run registers the plugin, again whenever the connection is lost, until ctx
// ends. Then it returns nil.
func (r *Runner) Run(ctx context.Context) error {
	pause := r.minRetry()
	var warned time.Time
	for {
		err := r.session(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil { // The plugin was registered.
			pause, warned = r.minRetry(), time.Time{}
		}
		log := r.Log.WithField("socket", r.Socket)
		if err != nil {
			log = log.WithError(err)
		}
		level := logrus.DebugLevel
		if time.Since(warned) > warnInterval {
			level, warned = logrus.WarnLevel, time.Now()
		}
		log.Logf(level, "Plugin %s is not registered with the container runtime, retrying: is containerd running, and is NRI enabled in its configuration?", r.Name)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause/2 + rand.N(pause/2+1)):
		}
		pause = min(2*pause, r.maxRetry())
	}
}

// session registers the plugin once and returns when the connection is lost: nil
// if the plugin was registered.
func (r *Runner) session(ctx context.Context) error {
	// Not all of the stub's ways to end are reliable. Closing its connection is.
	conn, err := (&net.Dialer{Timeout: r.startTimeout()}).DialContext(ctx, "unix", r.Socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	// The stub passes the context of Start to hooks. A hook that is at work when ctx
	// ends must still answer.
	hooks, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()

	state := &sessionState{report: r.Serving}
	defer state.end()
	lost := make(chan struct{})
	var loseOnce sync.Once
	plugin, err := stub.New(r.Hooks(state.synchronized),
		stub.WithConnection(conn),
		stub.WithPluginName(r.Name), stub.WithPluginIdx(r.Index),
		stub.WithOnClose(func() { loseOnce.Do(func() { close(lost) }) }),
		stub.WithLogger(stubLogger{r.Log}),
		// Newer runtimes fail the container whose adjustment is lost; others ignore it.
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true}),
	)
	if err != nil {
		return fmt.Errorf("create NRI stub: %w", err)
	}

	started := make(chan error, 1)
	go func() { started <- plugin.Start(hooks) }()
	select {
	case err = <-started:
	case <-time.After(r.startTimeout()):
		err = errors.Join(errStartHangs, release(hooks, conn, plugin, started))
	case <-ctx.Done():
		err = errors.Join(ctx.Err(), release(hooks, conn, plugin, started))
	}
	if err != nil {
		return err
	}
	select {
	case <-lost:
	case <-ctx.Done():
	}
	state.end()
	if ctx.Err() != nil {
		r.Drain()
		time.Sleep(flushTime) // The stub sends an answer after the hook has returned.
	}
	plugin.Stop()
	return nil
}

// release ends a Start that can hang forever: it waits for Configure on a
// connection that the runtime has closed. Where closing our end does not help, a
// call of Configure does.
func release(ctx context.Context, conn net.Conn, plugin stub.Stub, started <-chan error) error {
	closeErr := conn.Close()
	service, ok := plugin.(interface {
		Configure(context.Context, *api.ConfigureRequest) (*api.ConfigureResponse, error)
	})
	var err error
	for released := false; !released; {
		select {
		case err = <-started:
			released = true
		case <-time.After(releaseTime):
			if ok {
				_, _ = service.Configure(ctx, &api.ConfigureRequest{})
			}
		}
	}
	if err == nil {
		plugin.Stop()
	}
	return errors.Join(closeErr, err)
}

// sessionState reports a synchronization only while the session lives: its hook
// may be at work after the connection is lost.
type sessionState struct {
	report func(bool)

	mu    sync.Mutex
	ended bool
}

func (s *sessionState) synchronized() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.report(true)
	}
}

func (s *sessionState) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.report(false)
	}
	s.ended = true
}

// stubLogger logs the stub's messages. Informational ones are for debugging:
// [Runner] logs what matters.
type stubLogger struct{ log logrus.FieldLogger }

func (l stubLogger) Debugf(_ context.Context, format string, args ...any) {
	l.log.Debugf(format, args...)
}
func (l stubLogger) Infof(_ context.Context, format string, args ...any) {
	l.log.Debugf(format, args...)
}
func (l stubLogger) Warnf(_ context.Context, format string, args ...any) {
	l.log.Warnf(format, args...)
}
func (l stubLogger) Errorf(_ context.Context, format string, args ...any) {
	l.log.Errorf(format, args...)
}

func (r *Runner) startTimeout() time.Duration { return cmp.Or(r.StartTimeout, 15*time.Second) }
func (r *Runner) minRetry() time.Duration     { return cmp.Or(r.MinRetry, 100*time.Millisecond) }
func (r *Runner) maxRetry() time.Duration     { return cmp.Or(r.MaxRetry, 2*time.Second) }
