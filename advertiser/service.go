package advertiser

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"directx-nri/internal/allocation"
)

// readyTimeout bounds the check before a container start. The kubelet waits for
// 30 seconds.
const readyTimeout = 4 * time.Second

// service is the device plugin of one resource, as the kubelet sees it.
type service struct {
	v1beta1.UnimplementedDevicePluginServer

	feed *feed
	// swap is held for writing while pools are replaced.
	swap     *sync.RWMutex
	recorder Recorder
	ready    func(ctx context.Context, start Start) error
	// inject makes the answers, nil when they have a token.
	inject   Inject
	windows  bool
	observer Observer
	board    *board
	log      logrus.FieldLogger
	// stopping is closed when streams must end.
	stopping <-chan struct{}
	watchers *watchers
	trim     *trimmer
	// ended counts the streams that have ended, those of other servers
	// included.
	ended *atomic.Int64
}

// options are told both at registration and on request: the kubelet uses the
// latter. checked tells whether it is to ask before each start.
func options(checked bool) *v1beta1.DevicePluginOptions {
	return &v1beta1.DevicePluginOptions{PreStartRequired: checked, GetPreferredAllocationAvailable: true}
}

// GetDevicePluginOptions implements v1beta1.DevicePluginServer.
func (s *service) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return options(s.ready != nil), nil
}

// ListAndWatch implements v1beta1.DevicePluginServer.
func (s *service) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	s.watchers.opened()
	defer s.watchers.closed()
	defer s.ended.Add(1)
	first, _ := s.feed.current()
	s.board.watch(first.resource, 1)
	defer s.board.watch(first.resource, -1)
	var sent *pool
	for {
		pool, changed := s.feed.current()
		if sent == nil || pool.generation != sent.generation {
			response, err := pool.response()
			if err != nil {
				return err
			}
			if err := stream.Send(response); err != nil {
				return fmt.Errorf("send the list of %s: %w", pool.resource, err)
			}
			s.trim.passed(len(response.ProtoReflect().GetUnknown()))
		}
		sent = pool
		select {
		case <-changed:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-s.stopping:
			return nil
		}
	}
}

// GetPreferredAllocation implements v1beta1.DevicePluginServer. See
// [pool.prefer] for what is preferred.
func (s *service) GetPreferredAllocation(_ context.Context, request *v1beta1.PreferredAllocationRequest) (*v1beta1.PreferredAllocationResponse, error) {
	pool, _ := s.feed.current()
	response := &v1beta1.PreferredAllocationResponse{}
	for _, container := range request.GetContainerRequests() {
		s.trim.passed(totalLength(container.GetAvailableDeviceIDs()))
		ids, err := pool.prefer(container.GetAvailableDeviceIDs(), container.GetMustIncludeDeviceIDs(), int(container.GetAllocationSize()))
		if err != nil {
			// The kubelet admits the pod no more, and asks for no allocation.
			return nil, s.refused(pool.resource, err)
		}
		response.ContainerResponses = append(response.ContainerResponses, &v1beta1.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return response, nil
}

// Allocate implements v1beta1.DevicePluginServer: all containers of the
// request get what they ask for, or none does.
//
// The answer has a token and an interlock and no GPU: the NRI plugin or the runtime
// shim adds that when the container is created. With [Config.Inject] the answer has
// the GPU's devices and mounts and no token.
func (s *service) Allocate(ctx context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	promised, err := s.promise(ctx, request)
	if err == nil {
		promised.answers, err = s.answers(ctx, promised)
	}
	if err != nil {
		return nil, s.refused(promised.resource, err)
	}
	for i, token := range promised.tokens {
		s.log.WithFields(logrus.Fields{"allocation": token.ID(), "replicas": request.GetContainerRequests()[i].GetDevicesIds()}).Info("allocated")
		s.observer.Allocated(promised.resource)
	}
	return &v1beta1.AllocateResponse{ContainerResponses: promised.answers}, nil
}

// refused tells that a request is not met because of err, and returns what the
// kubelet is answered. It does not say for which pod it asked.
func (s *service) refused(resource string, err error) error {
	reason := failure(err)
	s.log.WithField("reason", reason).WithError(err).Warn("allocation refused")
	s.observer.AllocationFailed(resource, reason)
	return statusError(err)
}

// promised is what containers of one request were promised, one of each for
// each container.
type promised struct {
	resource   string
	containers [][]allocation.Replica
	tokens     []allocation.Token
	answers    []*v1beta1.ContainerAllocateResponse
}

// answers returns what the kubelet is answered. When it fails, or the kubelet
// stopped waiting meanwhile, the promise is taken back.
func (s *service) answers(ctx context.Context, p promised) ([]*v1beta1.ContainerAllocateResponse, error) {
	if s.inject == nil {
		var list []*v1beta1.ContainerAllocateResponse
		for _, token := range p.tokens {
			list = append(list, answerWithToken(p.resource, token, s.windows))
		}
		return list, nil
	}
	list, err := s.injected(ctx, p.resource, p.containers)
	if err == nil && ctx.Err() != nil {
		err = fmt.Errorf("allocate %s: %w", p.resource, context.Cause(ctx))
	}
	if err != nil {
		return nil, errors.Join(err, s.discard(p.tokens))
	}
	return list, nil
}

// promise checks what all containers of request ask for and records it, one
// record for each, or nothing at all.
//
// No pool may be replaced between the look at it and the record: a GPU that
// moves to another resource then has all its records under the old name, and is
// not promised under that name any more.
func (s *service) promise(ctx context.Context, request *v1beta1.AllocateRequest) (promised, error) {
	s.swap.RLock()
	defer s.swap.RUnlock()
	pool, _ := s.feed.current()
	p := promised{resource: pool.resource}
	for _, container := range request.GetContainerRequests() {
		replicas, err := pool.validate(container.GetDevicesIds())
		if err != nil {
			return p, err
		}
		p.containers = append(p.containers, replicas)
	}
	var err error
	p.tokens, err = s.record(ctx, pool.resource, p.containers)
	return p, err
}

// record records one allocation for each container. When one cannot be
// recorded, or the kubelet stopped waiting meanwhile, those that are recorded
// by then are taken back.
func (s *service) record(ctx context.Context, resource string, containers [][]allocation.Replica) ([]allocation.Token, error) {
	tokens := make([]allocation.Token, 0, len(containers))
	for _, replicas := range containers {
		token, err := s.recorder.Record(ctx, resource, replicas)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("allocate %s: %w", resource, err), s.discard(tokens))
		}
		tokens = append(tokens, token)
	}
	if ctx.Err() != nil {
		return nil, errors.Join(fmt.Errorf("allocate %s: %w", resource, context.Cause(ctx)), s.discard(tokens))
	}
	return tokens, nil
}

func (s *service) discard(tokens []allocation.Token) error {
	var failed error
	for _, token := range tokens {
		failed = errors.Join(failed, s.recorder.Discard(token))
	}
	return failed
}

// PreStartContainer implements v1beta1.DevicePluginServer. The kubelet calls
// it before every start of a container that holds a replica, and when it fails
// tries again later. So this is where a container waits that would otherwise
// start without its GPU.
func (s *service) PreStartContainer(ctx context.Context, request *v1beta1.PreStartContainerRequest) (*v1beta1.PreStartContainerResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	pool, _ := s.feed.current()
	if s.ready == nil {
		// A kubelet that has not heard of our mode yet may still ask.
		return &v1beta1.PreStartContainerResponse{}, nil
	}
	began := time.Now()
	err := s.ready(ctx, Start{Resource: pool.resource, ReplicaIDs: request.GetDevicesIds()})
	s.observer.StartChecked(pool.resource, time.Since(began), err == nil)
	if err != nil {
		s.log.WithField("replicas", request.GetDevicesIds()).WithError(err).Warn("start refused; the kubelet tries again by itself")
		return nil, status.Errorf(codes.FailedPrecondition,
			"the container is not started without its GPU; the kubelet tries again by itself: %v", err)
	}
	return &v1beta1.PreStartContainerResponse{}, nil
}

// statusError gives err the gRPC code that tells the kubelet's log whose fault
// it is.
func statusError(err error) error {
	code := codes.Internal
	switch {
	case errors.Is(err, ErrInvalidRequest), errors.Is(err, ErrNotInjectable):
		code = codes.InvalidArgument
	case diskFull(err):
		code = codes.ResourceExhausted
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	}
	return status.Error(code, err.Error())
}
