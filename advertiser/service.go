package advertiser

import (
	"context"
	"errors"
	"fmt"
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

	feed     *feed
	recorder Recorder
	ready    func(ctx context.Context, start Start) error
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
// latter.
func options() *v1beta1.DevicePluginOptions {
	return &v1beta1.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}
}

// GetDevicePluginOptions implements v1beta1.DevicePluginServer.
func (s *service) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return options(), nil
}

// ListAndWatch implements v1beta1.DevicePluginServer.
func (s *service) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	s.watchers.opened()
	defer s.watchers.closed()
	defer s.ended.Add(1)
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
			return nil, statusError(err)
		}
		response.ContainerResponses = append(response.ContainerResponses, &v1beta1.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return response, nil
}

// Allocate implements v1beta1.DevicePluginServer: all containers of the
// request get what they ask for, or none does.
//
// The answer has a token and nothing else. Devices and mounts are up to who
// adjusts the container's spec.
func (s *service) Allocate(ctx context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	pool, _ := s.feed.current()
	containers := make([][]allocation.Replica, 0, len(request.GetContainerRequests()))
	for _, container := range request.GetContainerRequests() {
		replicas, err := pool.validate(container.GetDevicesIds())
		if err != nil {
			return nil, statusError(err)
		}
		containers = append(containers, replicas)
	}
	tokens, err := s.record(ctx, pool.resource, containers)
	if err != nil {
		return nil, statusError(err)
	}
	response := &v1beta1.AllocateResponse{}
	for i, token := range tokens {
		s.log.WithFields(logrus.Fields{"allocation": token.ID(), "replicas": request.GetContainerRequests()[i].GetDevicesIds()}).Info("allocated")
		response.ContainerResponses = append(response.ContainerResponses, &v1beta1.ContainerAllocateResponse{
			Envs:        map[string]string{allocation.EnvKey(pool.resource): string(token)},
			Annotations: map[string]string{allocation.AnnotationKey(pool.resource): string(token)},
		})
	}
	return response, nil
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
	if err := s.ready(ctx, Start{Resource: pool.resource, ReplicaIDs: request.GetDevicesIds()}); err != nil {
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
	case errors.Is(err, ErrInvalidRequest):
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
