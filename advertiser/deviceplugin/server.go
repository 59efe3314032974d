package deviceplugin

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// server serves one resource on a socket in the kubelet's device plugin directory. Its gRPC
// methods are in rpc.go; registration.go keeps it registered.
type server struct {
	v1beta1.UnimplementedDevicePluginServer

	config   Config
	timing   timing
	resource string
	log      logrus.FieldLogger
	guard    *allocateGuard // of all servers
	// streamsChanged receives a value when a ListAndWatch stream has opened or closed.
	streamsChanged chan struct{}
	// stopping is closed when streams must end. Each call of serve makes a new one.
	stopping     chan struct{}
	registration registration // run's goroutine owns it

	mu sync.Mutex // guards the following fields
	// pool is the newest pool. listChanged is closed when one with another list is published.
	pool        *pool
	listChanged chan struct{}
	streams     streams
}

// streams are the ListAndWatch streams of a server. The kubelet watches the list while one is open.
type streams struct {
	open int
	// lastClosed is when a stream was last closed, or if none was, when the server was created.
	lastClosed time.Time
}

// newServer returns a server of p's resource.
func newServer(config Config, timing timing, guard *allocateGuard, p *pool) *server {
	return &server{
		config: config, timing: timing, resource: p.resource, log: config.Log.WithField("resource", p.resource),
		guard: guard, streamsChanged: make(chan struct{}, 1),
		pool: p, listChanged: make(chan struct{}), streams: streams{lastClosed: time.Now()},
	}
}

// current returns the newest pool, and a channel that is closed when its list is no longer the newest.
func (s *server) current() (*pool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pool, s.listChanged
}

func (s *server) publish(p *pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !proto.Equal(p.list, s.pool.list) {
		close(s.listChanged)
		s.listChanged = make(chan struct{})
	}
	s.pool = p
}

// countStream counts a stream that has opened, with change 1, or closed, with -1.
func (s *server) countStream(change int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams.open += change
	if change < 0 {
		s.streams.lastClosed = time.Now()
	}
	signal(s.streamsChanged)
}

func (s *server) currentStreams() streams {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams
}

// run serves and registers until ctx ends, through restarts of the kubelet. It returns
// an error only if a gRPC server fails.
func (s *server) run(ctx context.Context) error {
	var lastErr errlog.LastError
	// It may still have a connection to an earlier process.
	s.registration.kubelet, _ = localgrpc.Identify(filepath.Join(s.config.KubeletDir, kubeletSocket))
	for ctx.Err() == nil {
		listener, err := localgrpc.Listen(ctx, filepath.Join(s.config.KubeletDir, paths.SocketName(s.resource)))
		if ctx.Err() == nil && lastErr.Changed(err) && err != nil {
			s.log.WithError(err).Warn("Cannot listen in the kubelet's device plugin directory, retrying; check that the kubelet runs, and that no other advertiser does")
		}
		if err != nil {
			s.waitForStreams(ctx, s.timing.pollInterval)
		} else if err := s.serve(ctx, listener); err != nil {
			return fmt.Errorf("serve %s: %w", s.resource, err)
		}
	}
	return nil
}

// waitForStreams waits until a stream opens or closes, ctx ends or the timeout has passed.
func (s *server) waitForStreams(ctx context.Context, timeout time.Duration) {
	select {
	case <-ctx.Done():
	case <-s.streamsChanged:
	case <-time.After(timeout):
	}
}

// serve serves on listener and keeps the resource registered until ctx ends or the
// socket is removed. When it returns, no call is in flight and the socket is removed.
func (s *server) serve(ctx context.Context, listener *localgrpc.Listener) error {
	s.stopping = make(chan struct{})
	// An allocation that is recorded after the run would be missing from the next run's list.
	rpc := grpc.NewServer(grpc.WaitForHandlers(true))
	v1beta1.RegisterDevicePluginServer(rpc, s)
	servingCtx, fail := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		fail(fmt.Errorf("the server ended unexpectedly: %w", rpc.Serve(listener)))
	}()

	s.stayRegistered(servingCtx, listener)
	err := context.Cause(servingCtx)
	if ctx.Err() != nil {
		err = nil
	}
	close(s.stopping)
	stopTimer := time.AfterFunc(s.timing.stopTimeout, rpc.Stop)
	rpc.GracefulStop()
	stopTimer.Stop()
	<-ended
	return err
}

// signal puts a value into a channel of capacity one, unless it has one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
