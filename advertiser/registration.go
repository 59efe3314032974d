package advertiser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"directx-nri/internal/localgrpc"
)

// kubeletSocket is the name of the kubelet's registration socket.
const kubeletSocket = "kubelet.sock"

// timing has every duration that the package waits for, so that tests need not
// wait as long.
type timing struct {
	// poll is how often things are looked at that no event told of.
	poll time.Duration
	// recheck is how often devices and pods are looked at again.
	recheck time.Duration
	// patience is how long nothing must have held a missing GPU before it is
	// forgotten.
	patience time.Duration
	// firstRetry and lastRetry bound the wait after a failed registration.
	firstRetry, lastRetry time.Duration
	// call bounds one registration. The kubelet connects back to us in it.
	call time.Duration
	// watch is how long after a registration the kubelet may take to call
	// ListAndWatch, and how long it must watch for the registration to count
	// as one that lasts.
	watch time.Duration
	// stop bounds the wait for calls in flight when a server stops.
	stop time.Duration
	// pods bounds one question to the kubelet for its pods.
	pods time.Duration
}

func defaultTiming() timing {
	return timing{
		poll:       2 * time.Second,
		recheck:    10 * time.Second,
		patience:   20 * time.Second,
		firstRetry: 100 * time.Millisecond,
		lastRetry:  5 * time.Second,
		call:       10 * time.Second,
		watch:      10 * time.Second,
		stop:       2 * time.Second,
		pods:       2 * time.Second,
	}
}

// endpoint serves one resource on a socket in the kubelet's folder, and sees
// to it that the kubelet knows.
type endpoint struct {
	resource string
	folder   string
	// name is the socket's name in folder.
	name string
	// options are what the kubelet is told that we can do.
	options *v1beta1.DevicePluginOptions
	timing  timing
	now     func() time.Time
	random  func() float64
	log     logrus.FieldLogger
	// nudge tells that something in the folder has changed.
	nudge chan struct{}
	// service makes the service for a new server.
	service func(stopping <-chan struct{}, w *watchers) *service
}

func (e *endpoint) path() string { return filepath.Join(e.folder, e.name) }

func (e *endpoint) backoff() backoff {
	return backoff{first: e.timing.firstRetry, limit: e.timing.lastRetry, random: e.random}
}

// run serves and registers until ctx ends. Whatever the kubelet does, run goes
// on; it returns an error only when a server fails on its own.
func (e *endpoint) run(ctx context.Context) error {
	retry := e.backoff()
	trouble := ""
	for ctx.Err() == nil {
		listener, err := localgrpc.Listen(ctx, e.path())
		if err == nil {
			retry.reset()
			trouble = ""
			if err := e.serve(ctx, listener); err != nil {
				return fmt.Errorf("serve %s: %w", e.resource, err)
			}
			continue
		}
		if ctx.Err() == nil && trouble != err.Error() {
			trouble = err.Error()
			e.log.WithError(err).Warn("cannot listen in the kubelet's device plugin folder, trying again until it works; is the kubelet running, and no other advertiser?")
		}
		e.sleep(ctx, retry.next())
	}
	return nil
}

// sleep waits for d, or less when the folder changes or ctx ends.
func (e *endpoint) sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-e.nudge:
	case <-timer.C:
	}
}

// serve serves on listener, and keeps the service registered, until ctx ends
// or the socket is gone. It always leaves the listener closed, the server
// stopped and the socket removed.
func (e *endpoint) serve(ctx context.Context, listener *localgrpc.Listener) error {
	stopping := make(chan struct{})
	w := newWatchers()
	server := grpc.NewServer(
		grpc.ReadBufferSize(8<<10), grpc.WriteBufferSize(8<<10),
		// A request for a preferred allocation lists every replica available.
		grpc.MaxRecvMsgSize(16<<20),
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
		early = errors.Join(errors.New("the server ended by itself"), serveErr)
	default:
	}
	close(stopping)
	stopServer(server, e.timing.stop)
	<-failed
	if err := listener.Close(); err != nil {
		e.log.WithError(err).Warn("the socket cannot be removed")
	}
	return early
}

// stopServer lets calls in flight end, for at most patience.
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

// stayRegistered registers with the kubelet whenever that is needed, until ctx
// ends, the socket is gone or the server has failed.
func (e *endpoint) stayRegistered(ctx context.Context, listener *localgrpc.Listener, w *watchers, failed <-chan struct{}) {
	r := registration{retry: e.backoff(), timing: e.timing}
	for {
		seen := e.observe(listener, w)
		step, wait := r.decide(seen)
		switch step {
		case stepServeAgain:
			e.log.Info("the socket is gone, serving on a new one")
			return
		case stepRegister:
			err := e.register(ctx, listener)
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

func (e *endpoint) report(firstOfItsKind bool, err error) {
	switch {
	case err == nil:
		e.log.Info("registered with the kubelet")
	case firstOfItsKind:
		e.log.WithError(err).Warn("cannot register with the kubelet, trying again until it works")
	default:
		e.log.WithError(err).Debug("cannot register with the kubelet")
	}
}

func (e *endpoint) observe(listener *localgrpc.Listener, w *watchers) observation {
	// In this order: the kubelet empties the folder before it makes its
	// socket. Seeing ours after its own means that ours is not from before.
	kubelet, err := localgrpc.Identify(filepath.Join(e.folder, kubeletSocket))
	seen := observation{now: e.now(), kubelet: kubelet, kubeletThere: err == nil, intact: listener.Intact()}
	seen.watching, seen.everWatched = w.counts()
	return seen
}

// register makes one registration. It gives up when our socket goes: the
// kubelet would wait for it in vain.
func (e *endpoint) register(ctx context.Context, listener *localgrpc.Listener) error {
	ctx, cancel := context.WithTimeout(ctx, e.timing.call)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- e.call(ctx) }()
	for {
		select {
		case err := <-result:
			return err
		case <-e.nudge:
			if !listener.Intact() {
				cancel()
				return errors.Join(errors.New("our socket was removed meanwhile"), <-result)
			}
		}
	}
}

func (e *endpoint) call(ctx context.Context) error {
	path := filepath.Join(e.folder, kubeletSocket)
	conn, err := dialUnix(path)
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

// dialUnix returns a gRPC client for the server on a Unix socket. It connects
// when it is used.
func dialUnix(path string, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///localhost", append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableServiceConfig(),
		grpc.WithReadBufferSize(8 << 10), grpc.WithWriteBufferSize(8 << 10),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}),
	}, more...)...)
}

// observation is what is seen of the kubelet and our socket at one moment.
type observation struct {
	now time.Time
	// intact: our socket is still where the kubelet looks for it.
	intact       bool
	kubeletThere bool
	kubelet      localgrpc.Identity
	// watching is how many ListAndWatch streams are open, everWatched how many
	// there have been.
	watching, everWatched int
}

type step int

const (
	stepWait step = iota
	stepRegister
	stepServeAgain
)

// registration is what is known of our standing with the kubelet.
type registration struct {
	timing timing
	retry  backoff
	// with is the kubelet socket of the last attempt, at when it was made.
	with localgrpc.Identity
	at   time.Time
	// accepted: that attempt succeeded. watchedBefore is everWatched before it.
	accepted      bool
	watchedBefore int
	// notBefore is the earliest time for another attempt with the same socket.
	notBefore time.Time
	// trouble is the last failure's text.
	trouble string
}

// decide says what to do about what is seen; for stepWait also how long at
// most, when nothing happens.
//
// The kubelet's answer to a registration is not the end of it. It may lose us
// afterwards, when it ends an older connection under the same resource's name
// (runClient in plugin/v1beta1/client.go of pkg/kubelet/cm/devicemanager,
// v1.34), and it does not tell. What tells is that nobody watches our list.
func (r *registration) decide(seen observation) (step, time.Duration) {
	switch {
	case !seen.intact:
		return stepServeAgain, 0
	case !seen.kubeletThere:
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

// done notes an attempt, made on what was seen and ended now. It tells whether
// the failure is another than the last.
func (r *registration) done(seen observation, now time.Time, err error) (firstOfItsKind bool) {
	r.with, r.at, r.accepted, r.watchedBefore = seen.kubelet, now, err == nil, seen.everWatched
	r.notBefore = now.Add(r.retry.next())
	trouble := ""
	if err != nil {
		trouble = err.Error()
	}
	firstOfItsKind = trouble != r.trouble
	r.trouble = trouble
	return firstOfItsKind
}

// watchers counts a server's ListAndWatch streams.
type watchers struct {
	mu        sync.Mutex
	open, all int
	// changed tells that a stream was opened or closed.
	changed chan struct{}
}

func newWatchers() *watchers { return &watchers{changed: make(chan struct{}, 1)} }

func (w *watchers) opened() { w.add(1, 1) }
func (w *watchers) closed() { w.add(-1, 0) }

func (w *watchers) add(open, all int) {
	w.mu.Lock()
	w.open += open
	w.all += all
	w.mu.Unlock()
	signal(w.changed)
}

func (w *watchers) counts() (open, all int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.open, w.all
}

// signal puts a token into a channel of capacity one, unless one is waiting
// there.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
