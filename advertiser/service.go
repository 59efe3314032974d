package advertiser

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/internal/allocation"
)

// readyTimeout bounds the check before a container's start. The kubelet waits for
// 30 seconds.
const readyTimeout = 4 * time.Second

// options are for registration, and for GetDevicePluginOptions: the kubelet uses the
// latter.
//
// A kubelet that allocates at creation calls PreStartContainer before Allocate and, as
// nothing is allocated yet, never starts the container
// (GetDeviceRunContainerOptions in pkg/kubelet/cm/devicemanager, v1.34 and v1.37).
func (s *server) options() *v1beta1.DevicePluginOptions {
	return &v1beta1.DevicePluginOptions{PreStartRequired: !s.config.AtCreation, GetPreferredAllocationAvailable: true}
}

// GetDevicePluginOptions implements v1beta1.DevicePluginServer.
func (s *server) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return s.options(), nil
}

// ListAndWatch implements v1beta1.DevicePluginServer.
func (s *server) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	s.addStreams(1)
	defer s.addStreams(-1)
	var sent *pool
	for {
		pool, changed := s.current()
		if sent == nil || !pool.sameList(sent) {
			if err := stream.Send(pool.list()); err != nil {
				return fmt.Errorf("send the list of %s: %w", s.resource, err)
			}
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

// GetPreferredAllocation implements v1beta1.DevicePluginServer with [pool.prefer].
func (s *server) GetPreferredAllocation(_ context.Context, request *v1beta1.PreferredAllocationRequest) (*v1beta1.PreferredAllocationResponse, error) {
	if s.Allocating() {
		s.disturbAllocations() // Another one has begun, whether it comes to Allocate or not.
	}
	pool, _ := s.current()
	response := &v1beta1.PreferredAllocationResponse{}
	for _, container := range request.GetContainerRequests() {
		ids, err := pool.prefer(container.GetAvailableDeviceIDs(), container.GetMustIncludeDeviceIDs(), int(container.GetAllocationSize()))
		if err != nil {
			// There is no call of Allocate then.
			return nil, s.refuse(err)
		}
		response.ContainerResponses = append(response.ContainerResponses, &v1beta1.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return response, nil
}

// Allocate implements v1beta1.DevicePluginServer: either all containers of the
// request get what they request, or none does.
//
// The answer has a token and an interlock and no GPU: the NRI plugin or the runtime
// shim adds that when the container is created. With [Config.Inject] the answer has
// the GPU's devices and mounts and no token.
func (s *server) Allocate(ctx context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	s.allocating.Add(1)
	defer s.allocating.Add(-1)
	sole := s.soleAllocation()
	response, tokens, err := s.allocate(ctx, request)
	if err == nil {
		err = sole(ctx)
	}
	if err == nil && ctx.Err() != nil {
		err = fmt.Errorf("allocate %s: %w", s.resource, context.Cause(ctx))
	}
	if err != nil {
		for _, token := range tokens {
			err = errors.Join(err, s.config.Recorder.End(token.ID()))
		}
		s.disturbAllocations() // The kubelet takes the replicas of those in flight for free now.
		return nil, s.refuse(err)
	}
	for i, token := range tokens {
		s.log.WithFields(logrus.Fields{"allocation": token.ID(), "replicas": request.GetContainerRequests()[i].GetDevicesIds()}).Info("Allocated")
		s.config.Metrics.Allocations.WithLabelValues(s.resource).Inc()
	}
	signal(s.allocated)
	return response, nil
}

// errConcurrent is returned for an allocation during which another one began or failed.
var errConcurrent = errors.New("the allocation for another container began meanwhile, and two at once can crash the kubelet of Windows (kubernetes#136021); the kubelet tries again in 10 to 15 seconds")

// disturbAllocations makes the allocations in flight fail, and those that begin within
// timing.quiet, if Config.AtCreation is set.
func (a *Advertiser) disturbAllocations() {
	now := time.Now()
	a.disturbed.Store(&now)
}

// soleAllocation returns a function that waits until timing.quiet from now, and fails if
// another allocation has begun or failed meanwhile, or had within as long before.
//
// A kubelet that allocates at creation does so for several pods at once. When an
// allocation begins, it drops state that those before it still write to when Allocate has
// succeeded, which is a panic (devicesToReuse in pkg/kubelet/cm/devicemanager/manager.go,
// v1.34 and v1.37). So of several that begin at once all but the last must fail, and
// which is the last cannot be seen if they are close. When one fails, the kubelet takes
// the replicas of those in flight for free (allocateContainerResources there). Without
// Config.AtCreation the kubelet allocates for one pod after the other.
func (s *server) soleAllocation() func(context.Context) error {
	if !s.config.AtCreation {
		return func(context.Context) error { return nil }
	}
	begun := time.Now()
	last := s.disturbed.Swap(&begun)
	quiet := time.After(s.timing.quiet)
	return func(ctx context.Context) error {
		select {
		case <-quiet:
		case <-ctx.Done():
		}
		if s.disturbed.Load() != &begun || last != nil && begun.Sub(*last) < s.timing.quiet {
			return errConcurrent
		}
		return nil
	}
}

// allocate validates the whole request before it records anything. It returns the
// tokens of all records, also with an error.
func (s *server) allocate(ctx context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, []allocation.Token, error) {
	pool, _ := s.current()
	var containers [][]allocation.Replica
	for _, container := range request.GetContainerRequests() {
		if s.config.AtCreation {
			if err := s.config.Ready(ctx, s.resource, container.GetDevicesIds()); err != nil {
				return nil, nil, fmt.Errorf("%w: %w", errNotReady, err)
			}
		}
		replicas, err := pool.validate(container.GetDevicesIds())
		if err != nil {
			return nil, nil, err
		}
		containers = append(containers, replicas)
	}
	response, tokens := &v1beta1.AllocateResponse{}, make([]allocation.Token, 0, len(containers))
	for i, replicas := range containers {
		token, err := s.config.Recorder.Record(ctx, s.resource, replicas, s.config.Inject != nil)
		if err != nil {
			return nil, tokens, fmt.Errorf("allocate %s: %w", s.resource, err)
		}
		tokens = append(tokens, token)
		answer := answerWithToken(s.resource, token, s.config.NodeOS == "windows")
		if s.config.Inject != nil {
			if answer, err = s.config.Inject(ctx, s.resource, InstanceIDs(request.GetContainerRequests()[i].GetDevicesIds())); err != nil {
				return nil, tokens, fmt.Errorf("allocate %s: %w", s.resource, err)
			}
		}
		response.ContainerResponses = append(response.ContainerResponses, answer)
	}
	return response, tokens, nil
}

// errNotReady is returned while containers cannot be given GPUs.
var errNotReady = errors.New("the container cannot start with its GPU now; the kubelet retries")

// PreStartContainer implements v1beta1.DevicePluginServer. The kubelet calls it
// before every start of a container that holds a replica, and again later if it
// fails. It does not if [Config.AtCreation] is set.
func (s *server) PreStartContainer(ctx context.Context, request *v1beta1.PreStartContainerRequest) (*v1beta1.PreStartContainerResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	began := time.Now()
	err := s.config.Ready(ctx, s.resource, request.GetDevicesIds())
	result := map[bool]string{true: "passed", false: "refused"}[err == nil]
	s.config.Metrics.StartChecks.WithLabelValues(s.resource, result).Observe(time.Since(began).Seconds())
	if err != nil {
		s.log.WithField("replicas", request.GetDevicesIds()).WithError(err).Warn("Container start refused; the kubelet retries")
		return nil, status.Error(codes.FailedPrecondition, fmt.Sprintf("%v: %v", errNotReady, err))
	}
	return &v1beta1.PreStartContainerResponse{}, nil
}

// refuse logs and counts a request that failed with err, and returns the error for
// the kubelet.
func (s *server) refuse(err error) error {
	reason, code := classify(err)
	s.log.WithField("reason", reason).WithError(err).Warn("Allocation refused")
	s.config.Metrics.AllocationFailures.WithLabelValues(s.resource, reason).Inc()
	return status.Error(code, err.Error())
}

// classify returns the reason of an error for metrics, and its gRPC code.
func classify(err error) (reason string, code codes.Code) {
	switch {
	case errors.Is(err, ErrInvalidRequest):
		return "invalid_request", codes.InvalidArgument
	case errors.Is(err, ErrNotInjectable):
		return "not_injectable", codes.InvalidArgument
	case errors.Is(err, errNotReady):
		return "not_ready", codes.FailedPrecondition
	case errors.Is(err, errConcurrent):
		return "concurrent", codes.Aborted
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "canceled", status.FromContextError(err).Code()
	}
	return "other", codes.Internal
}
