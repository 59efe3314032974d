package advertiser

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"directx-nri/internal/localgrpc"
)

// kubeletSocket is the name of the kubelet's registration socket.
const kubeletSocket = "kubelet.sock"

// timing are the durations that the package waits for. Tests shorten them.
type timing struct {
	// poll is the interval of checks for changes without an event.
	poll time.Duration
	// recheck is the interval at which devices, records and pods are read again.
	recheck time.Duration
	// afterAllocate is when they are read again after an allocation.
	afterAllocate time.Duration
	// patience is how long a replica must be free before it leaves the list.
	patience time.Duration
	// firstRetry and lastRetry bound the delay after a failed registration.
	firstRetry, lastRetry time.Duration
	// call bounds one registration, during which the kubelet connects to us.
	call time.Duration
	// watch is how long after a registration the kubelet may take to call
	// ListAndWatch, and how long it must watch until the retry delay is reset.
	watch time.Duration
	// stop bounds the wait for calls in flight when a server stops.
	stop time.Duration
}

func defaultTiming() timing {
	return timing{
		poll:          2 * time.Second,
		recheck:       10 * time.Second,
		afterAllocate: time.Second,
		patience:      20 * time.Second,
		firstRetry:    100 * time.Millisecond,
		lastRetry:     5 * time.Second,
		call:          10 * time.Second,
		watch:         10 * time.Second,
		stop:          2 * time.Second,
	}
}

// endpoint serves one resource on a socket in the kubelet's device plugin directory
// and keeps it registered.
type endpoint struct {
	resource  string
	directory string
	// name is the name of the socket in directory.
	name    string
	options *v1beta1.DevicePluginOptions
	timing  timing
	now     func() time.Time
	log     logrus.FieldLogger
	// nudge receives a value when the directory has changed.
	nudge chan struct{}
	// service returns the service for a new server.
	service func(stopping <-chan struct{}, w *watchers) *service
}

func (e *endpoint) path() string { return filepath.Join(e.directory, e.name) }

func (e *endpoint) backoff() backoff {
	return backoff{first: e.timing.firstRetry, limit: e.timing.lastRetry}
}

// run serves and registers until ctx ends, through restarts of the kubelet. It returns
// an error only if a server fails.
func (e *endpoint) run(ctx context.Context) error {
	retry := e.backoff()
	var state errorState
	for ctx.Err() == nil {
		listener, err := localgrpc.Listen(ctx, e.path())
		if err == nil {
			retry.reset()
			state = ""
			if err := e.serve(ctx, listener); err != nil {
				return fmt.Errorf("serve %s: %w", e.resource, err)
			}
			continue
		}
		if ctx.Err() == nil && state.changed(err) {
			e.log.WithError(err).Warn("Cannot listen in the kubelet's device plugin directory, retrying; is the kubelet running, and no other advertiser?")
		}
		e.sleep(ctx, retry.next())
	}
	return nil
}

// sleep waits for d, or until the directory changes or ctx ends.
func (e *endpoint) sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-e.nudge:
	case <-timer.C:
	}
}

// serve serves on listener and keeps the service registered until ctx ends or the
// socket is removed. When it returns, no call is in flight and the socket is removed.
func (e *endpoint) serve(ctx context.Context, listener *localgrpc.Listener) error {
	stopping := make(chan struct{})
	w := newWatchers()
	server := grpc.NewServer(
		// A request for a preferred allocation lists every available replica.
		grpc.MaxRecvMsgSize(16<<20),
		// An allocation that is recorded after the run would not be in the next one's list.
		grpc.WaitForHandlers(true),
	)
	v1beta1.RegisterDevicePluginServer(server, e.service(stopping, w))
	failed := make(chan struct{})
	var serveErr error
	go func() {
		defer close(failed)
		serveErr = server.Serve(listener)
	}()

	e.stayRegistered(ctx, listener, w, failed)
	var early error
	select {
	case <-failed:
		early = errors.Join(errors.New("server ended unexpectedly"), serveErr)
	default:
	}
	close(stopping)
	stopServer(server, e.timing.stop)
	<-failed
	if err := listener.Close(); err != nil {
		e.log.WithError(err).Warn("Cannot remove the socket")
	}
	return early
}

// stopServer waits for calls in flight, and after patience cancels them.
func stopServer(server *grpc.Server, patience time.Duration) {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		server.GracefulStop()
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-stopped:
	case <-timer.C:
		server.Stop()
		<-stopped
	}
}

// stayRegistered registers with the kubelet whenever necessary, until ctx ends, the
// socket is removed or the server has failed.
func (e *endpoint) stayRegistered(ctx context.Context, listener *localgrpc.Listener, w *watchers, failed <-chan struct{}) {
	r := registration{retry: e.backoff(), timing: e.timing}
	for {
		seen := e.observe(listener, w)
		step, wait := r.decide(seen)
		switch step {
		case stepServeAgain:
			e.log.Info("The socket was removed, creating it again")
			return
		case stepRegister:
			err := e.register(ctx)
			if ctx.Err() != nil {
				return
			}
			e.report(r.done(seen, e.now(), err), err)
			continue
		case stepWait:
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-failed:
		case <-e.nudge:
		case <-w.changed:
		case <-timer.C:
		}
		timer.Stop()
		select {
		case <-ctx.Done():
			return
		case <-failed:
			return
		default:
		}
	}
}

func (e *endpoint) report(changed bool, err error) {
	switch {
	case err == nil:
		e.log.Info("Registered with the kubelet")
	case changed:
		e.log.WithError(err).Warn("Cannot register with the kubelet, retrying")
	default:
		e.log.WithError(err).Debug("Cannot register with the kubelet")
	}
}

func (e *endpoint) observe(listener *localgrpc.Listener, w *watchers) observation {
	// The kubelet empties the directory before it creates its socket, so ours must
	// be checked after the kubelet's.
	kubelet, err := localgrpc.Identify(filepath.Join(e.directory, kubeletSocket))
	seen := observation{now: e.now(), kubelet: kubelet, kubeletExists: err == nil, intact: listener.Intact()}
	seen.watching, seen.everWatched = w.counts()
	return seen
}

// register registers once.
func (e *endpoint) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, e.timing.call)
	defer cancel()
	path := filepath.Join(e.directory, kubeletSocket)
	conn, err := localgrpc.Dial(path)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = v1beta1.NewRegistrationClient(conn).Register(ctx, &v1beta1.RegisterRequest{
		Version:      v1beta1.Version,
		Endpoint:     e.name,
		ResourceName: e.resource,
		Options:      e.options,
	})
	if err != nil {
		return fmt.Errorf("register %s on %s: %w", e.resource, path, err)
	}
	return nil
}

// observation is the state of the kubelet and our socket at one moment.
type observation struct {
	now time.Time
	// intact reports whether our socket still exists.
	intact        bool
	kubeletExists bool
	kubelet       localgrpc.Identity
	// watching is the number of open ListAndWatch streams, everWatched that of all
	// streams so far.
	watching, everWatched int
}

type step int

const (
	stepWait step = iota
	stepRegister
	stepServeAgain
)

// registration is the state of the registration with the kubelet.
type registration struct {
	timing timing
	retry  backoff
	// with is the kubelet's socket at the last attempt, at the time of the attempt.
	with localgrpc.Identity
	at   time.Time
	// accepted reports whether that attempt succeeded. watchedBefore is everWatched
	// before it.
	accepted      bool
	watchedBefore int
	// notBefore is the earliest time of another attempt with the same socket.
	notBefore time.Time
	state     errorState
}

// decide returns the next step, and for stepWait the time to wait unless something
// happens.
//
// An accepted registration can still get lost, without notice, when the kubelet ends
// an older connection for the same resource (runClient in plugin/v1beta1/client.go of
// pkg/kubelet/cm/devicemanager, v1.34). The only sign of it is that the kubelet does
// not watch our list.
func (r *registration) decide(seen observation) (step, time.Duration) {
	switch {
	case !seen.intact:
		return stepServeAgain, 0
	case !seen.kubeletExists:
		return stepWait, r.timing.poll
	case !seen.kubelet.Same(r.with):
		r.retry.reset()
		return stepRegister, 0
	case r.accepted && seen.watching > 0:
		if seen.now.Sub(r.at) >= r.timing.watch {
			r.retry.reset()
		}
		return stepWait, r.timing.poll
	case r.accepted && seen.everWatched == r.watchedBefore && seen.now.Before(r.at.Add(r.timing.watch)):
		return stepWait, min(r.timing.poll, r.at.Add(r.timing.watch).Sub(seen.now))
	case seen.now.Before(r.notBefore):
		return stepWait, min(r.timing.poll, r.notBefore.Sub(seen.now))
	}
	return stepRegister, 0
}

// done records an attempt, made on what was seen and ended now. It reports whether
// its error differs from the last one.
func (r *registration) done(seen observation, now time.Time, err error) (changed bool) {
	r.with, r.at, r.accepted, r.watchedBefore = seen.kubelet, now, err == nil, seen.everWatched
	r.notBefore = now.Add(r.retry.next())
	return r.state.changed(err)
}

// watchers counts a server's ListAndWatch streams.
type watchers struct {
	mu        sync.Mutex
	open, all int
	// changed receives a value when a stream is opened or closed.
	changed chan struct{}
}

func newWatchers() *watchers { return &watchers{changed: make(chan struct{}, 1)} }

// add counts n opened streams, or -n closed ones.
func (w *watchers) add(n int) {
	w.mu.Lock()
	w.open += n
	w.all += max(n, 0)
	w.mu.Unlock()
	signal(w.changed)
}

func (w *watchers) counts() (open, all int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.open, w.all
}

// backoff returns the delays after consecutive failures: each is twice the one before,
// up to a limit.
type backoff struct {
	first, limit, current time.Duration
}

// next returns the next delay.
func (b *backoff) next() time.Duration {
	b.current = min(max(2*b.current, b.first), b.limit)
	return b.current
}

// reset starts again with the first delay.
func (b *backoff) reset() { b.current = 0 }
