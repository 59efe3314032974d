package nri

import (
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

// Runner keeps a plugin registered with the runtime's NRI for as long as it
// runs. The runtime neither restarts nor redials a plugin, and drops one that
// is slow once, so that staying registered is the plugin's own work.
type Runner struct {
	// Socket is the path of the runtime's NRI socket.
	Socket string
	// Name and Index are what the plugin registers as; plugins are called in
	// the order of their indices, 00 to 99.
	Name, Index string
	// Hooks returns the plugin for one registration: a value with the methods
	// of the stub package's interfaces, Synchronize among them, which calls
	// synchronized when it is done.
	Hooks func(synchronized func()) any
	// Drain waits until no hook is at work, for a time that it bounds itself.
	// nil when no hook takes any time.
	Drain func()
	// Serving is told when the plugin becomes registered and synchronized,
	// and when it no longer is. nil when nobody wants to know.
	Serving func(bool)
	Log     logrus.FieldLogger

	// The zero values of these mean the defaults.

	// StartTimeout is how long a registration may take. The runtime gives it
	// 5 s, and as long again to configure the plugin.
	StartTimeout time.Duration
	// MinRetry and MaxRetry bound the pause between two attempts.
	MinRetry, MaxRetry time.Duration
}

// sayAgain is how long a runtime that cannot be reached is not mentioned
// again.
const sayAgain = time.Minute

var errStartHangs = errors.New("the runtime does not finish the registration")

// Run registers the plugin, and registers it anew whenever the connection is
// lost, until ctx ends. It returns nil then, and nothing else ends it.
func (r *Runner) Run(ctx context.Context) error {
	pause := r.minRetry()
	var said time.Time
	for {
		err := r.session(ctx)
		if ctx.Err() != nil {
			return nil
		}
		// A session that was a session starts the back-off anew.
		if err == nil {
			pause, said = r.minRetry(), time.Time{}
		}
		log := r.Log.WithField("socket", r.Socket)
		if err != nil {
			log = log.WithError(err)
		}
		level := logrus.DebugLevel
		if time.Since(said) > sayAgain {
			level, said = logrus.WarnLevel, time.Now()
		}
		log.Logf(level, "%s is not registered with the container runtime, trying again: is containerd running, and NRI enabled in its configuration?", r.Name)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause/2 + rand.N(pause/2+1)):
		}
		pause = min(2*pause, r.maxRetry())
	}
}

// session is one registration, from dialling the runtime to losing it. It
// returns nil when the plugin was registered.
func (r *Runner) session(ctx context.Context) error {
	// The stub's ways of ending are several and not all of them sure, so the
	// connection is ours: closing it ends what the stub does.
	conn, err := (&net.Dialer{Timeout: r.startTimeout()}).DialContext(ctx, "unix", r.Socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	// The stub calls hooks with the context that it is started with. A hook
	// that is at work when ours ends is to answer all the same: the runtime
	// would create its container without us.
	hooks, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()

	life := &life{tell: r.Serving}
	defer life.end()
	lost := make(chan struct{})
	var loseOnce sync.Once
	plugin, err := stub.New(r.Hooks(life.synchronized),
		stub.WithConnection(conn),
		stub.WithPluginName(r.Name), stub.WithPluginIdx(r.Index),
		stub.WithOnClose(func() { loseOnce.Do(func() { close(lost) }) }),
		stub.WithLogger(stubLogger{r.Log}),
		// Runtimes that know this fail the one container whose adjustment is
		// lost; it is ignored by those that do not.
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true}),
	)
	if err != nil {
		return fmt.Errorf("set the NRI plugin up: %w", err)
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
	life.end()
	if ctx.Err() != nil && r.Drain != nil {
		r.Drain()
		// The stub sends an answer after the hook has returned.
		time.Sleep(answerTime)
	}
	plugin.Stop()
	return nil
}

// answerTime is ample for an answer's way through a Unix socket.
const answerTime = 20 * time.Millisecond

// release ends a Start that may hang for good: one that waits for Configure on
// a connection that the runtime has closed. Closing the connection ends Start
// everywhere else, and only when it has not done so, Start waits there: then a
// Configure ends it, whoever calls it.
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

// releaseTime is how long a Start may take to see that its connection is
// closed.
const releaseTime = 200 * time.Millisecond

// life lets word of a session's synchronization through only as long as the
// session lives: its hook may still be at work when the connection is gone.
type life struct {
	tell func(bool)

	mu    sync.Mutex
	ended bool
}

func (l *life) synchronized() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended && l.tell != nil {
		l.tell(true)
	}
}

func (l *life) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended && l.tell != nil {
		l.tell(false)
	}
	l.ended = true
}

// stubLogger passes on what the stub says. Its everyday words are for
// debugging: what matters of them, the Runner says itself.
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

func (r *Runner) startTimeout() time.Duration { return orDefault(r.StartTimeout, 15*time.Second) }
func (r *Runner) minRetry() time.Duration     { return orDefault(r.MinRetry, 100*time.Millisecond) }
func (r *Runner) maxRetry() time.Duration     { return orDefault(r.MaxRetry, 2*time.Second) }

func orDefault(d, fallback time.Duration) time.Duration {
	if d == 0 {
		return fallback
	}
	return d
}
