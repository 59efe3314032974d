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

	"github.com/directx-nri/directx-nri/internal/localgrpc"
)

// kubeletSocket is the name of the kubelet's registration socket.
const kubeletSocket = "kubelet.sock"

// registerTimeout bounds one registration, during which the kubelet connects to us.
const registerTimeout = 10 * time.Second

// server serves one resource on a socket in the kubelet's device plugin directory and
// keeps it registered. Its gRPC methods are in service.go.
type server struct {
	v1beta1.UnimplementedDevicePluginServer

	*Advertiser
	resource string
	log      logrus.FieldLogger
	// changed receives a value when the number of streams has changed.
	changed chan struct{}
	// stopping is closed when streams must end.
	stopping chan struct{}

	mu   sync.Mutex
	pool *pool
	// newer is closed when there is a newer pool.
	newer chan struct{}
	// streams is the number of open ListAndWatch streams.
	streams int
	opened  int // how many there have been
}

func (a *Advertiser) newServer(p *pool) *server {
	return &server{
		Advertiser: a, resource: p.resource, log: a.config.Log.WithField("resource", p.resource),
		changed: make(chan struct{}, 1), stopping: make(chan struct{}), pool: p, newer: make(chan struct{}),
	}
}

// current returns the pool, and a channel that is closed when there is a newer one.
func (s *server) current() (*pool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pool, s.newer
}

func (s *server) publish(p *pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool = p
	close(s.newer)
	s.newer = make(chan struct{})
}

// addStreams counts n opened ListAndWatch streams, or -n closed ones.
func (s *server) addStreams(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams += n
	s.opened += max(n, 0)
	signal(s.changed)
}

// watched reports whether the kubelet watches the list.
func (s *server) watched() bool {
	now, _ := s.watchedTimes()
	return now
}

// watchedTimes is watched, and returns how often the kubelet began to.
func (s *server) watchedTimes() (now bool, times int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams > 0, s.opened
}

// run serves and registers until ctx ends, through restarts of the kubelet. It returns
// an error only if a gRPC server fails.
func (s *server) run(ctx context.Context) error {
	var state errorState
	for ctx.Err() == nil {
		listener, err := localgrpc.Listen(ctx, filepath.Join(s.config.KubeletDir, SocketName(s.resource)))
		if ctx.Err() == nil && state.changed(err) && err != nil {
			s.log.WithError(err).Warn("Cannot listen in the kubelet's device plugin directory, retrying; is the kubelet running, and no other advertiser?")
		}
		if err != nil {
			s.sleep(ctx, s.timing.poll)
		} else if err := s.serve(ctx, listener); err != nil {
			return fmt.Errorf("serve %s: %w", s.resource, err)
		}
	}
	return nil
}

// sleep waits until the next check is due, something has changed or ctx ends.
func (s *server) sleep(ctx context.Context, interval time.Duration) {
	timer := time.NewTimer(interval)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-s.changed:
	case <-timer.C:
	}
}

// serve serves on listener and keeps the resource registered until ctx ends or the
// socket is removed. When it returns, no call is in flight and the socket is removed.
func (s *server) serve(ctx context.Context, listener *localgrpc.Listener) error {
	s.stopping = make(chan struct{})
	rpc := grpc.NewServer(
		// A request for a preferred allocation lists every available replica.
		grpc.MaxRecvMsgSize(16<<20),
		// An allocation that is recorded after the run would not be in the next one's list.
		grpc.WaitForHandlers(true),
	)
	v1beta1.RegisterDevicePluginServer(rpc, s)
	serving, fail := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		fail(errors.Join(errors.New("server ended unexpectedly"), rpc.Serve(listener)))
	}()

	s.stayRegistered(serving, listener)
	err := context.Cause(serving)
	if ctx.Err() != nil {
		err = nil
	}
	close(s.stopping)
	cutOff := time.AfterFunc(s.timing.stop, rpc.Stop)
	rpc.GracefulStop()
	cutOff.Stop()
	<-ended
	if err := listener.Close(); err != nil {
		s.log.WithError(err).Warn("Cannot remove the socket")
	}
	return err
}

// stayRegistered registers with the kubelet whenever necessary, until ctx ends or the
// socket is removed.
func (s *server) stayRegistered(ctx context.Context, listener *localgrpc.Listener) {
	r := registration{grace: s.timing.watch, retry: s.timing.poll}
	for ctx.Err() == nil {
		// The kubelet empties the directory before it creates its socket, so ours must
		// be checked after the kubelet's.
		kubelet, err := localgrpc.Identify(filepath.Join(s.config.KubeletDir, kubeletSocket))
		if !listener.Intact() {
			s.log.Info("The socket was removed, creating it again")
			return
		}
		watched, opened := s.watchedTimes()
		if err != nil || !r.due(s.now(), kubelet, watched, opened) {
			// A kubelet admits its pods soon after it has created its socket, and refuses
			// those whose devices are not registered by then.
			interval := s.timing.unwatched
			if watched {
				interval = s.timing.poll
			}
			s.sleep(ctx, interval)
			continue
		}
		r.opened = opened
		err = s.register(ctx)
		if ctx.Err() != nil {
			return
		}
		r.with, r.at, r.accepted = kubelet, s.now(), err == nil
		if changed := r.state.changed(err); err == nil {
			s.log.Info("Registered with the kubelet")
		} else if changed {
			s.log.WithError(err).Warn("Cannot register with the kubelet, retrying")
		}
	}
}

// register registers once.
func (s *server) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	path := filepath.Join(s.config.KubeletDir, kubeletSocket)
	conn, err := localgrpc.Dial(path)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = v1beta1.NewRegistrationClient(conn).Register(ctx, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: SocketName(s.resource), ResourceName: s.resource, Options: s.options(),
	})
	if err != nil {
		return fmt.Errorf("register %s on %s: %w", s.resource, path, err)
	}
	return nil
}

// registration is the state of the registration with the kubelet.
type registration struct {
	// grace is how long after a registration the kubelet may take to call
	// ListAndWatch, retry the time until another attempt after a failed one.
	grace, retry time.Duration
	// with is the kubelet's socket at the last attempt, which ended at at. accepted
	// reports whether it succeeded.
	with     localgrpc.Identity
	at       time.Time
	accepted bool
	opened   int // how often the kubelet had begun to watch the list before
	state    errorState
}

// due reports whether to register with kubelet now.
//
// An accepted registration can still get lost, without notice, when the kubelet ends
// an older connection for the same resource (runClient in plugin/v1beta1/client.go of
// pkg/kubelet/cm/devicemanager, v1.34). The only sign of it is that the kubelet does
// not watch our list, or no longer. opened is how often it began to.
func (r *registration) due(now time.Time, kubelet localgrpc.Identity, watched bool, opened int) bool {
	switch {
	case !kubelet.Same(r.with):
		return true
	case r.accepted && opened > r.opened:
		return !watched && now.Sub(r.at) >= r.retry
	case r.accepted:
		return !watched && now.Sub(r.at) >= r.grace
	}
	return now.Sub(r.at) >= r.retry
}

// signal puts a value into a channel of capacity one, unless it has one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// errorState is the text of the last error, "" if there was none. With it an error
// that persists is logged once, and so is its end.
type errorState string

// changed records err and reports whether it differs from the last one.
func (s *errorState) changed(err error) bool {
	before := *s
	*s = ""
	if err != nil {
		*s = errorState(err.Error())
	}
	return *s != before
}

// log logs err if it differs from the last one, or that there is none any more.
func (s *errorState) log(log logrus.FieldLogger, err error, failed, recovered string) {
	switch changed := s.changed(err); {
	case changed && err != nil:
		log.WithError(err).Error(failed)
	case changed:
		log.Info(recovered)
	}
}
