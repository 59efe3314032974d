package deviceplugin

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
	"github.com/directx-nri/directx-nri/internal/bounded"
	"github.com/directx-nri/directx-nri/internal/errlog"
)

// readyTimeout bounds the check before a container's start. The kubelet waits for 30 seconds.
const readyTimeout = 4 * time.Second

// options returns the options for registration and GetDevicePluginOptions. The kubelet uses the latter.
//
// On Windows, a kubelet up to 1.37 allocates when it creates a container. It calls PreStartContainer before
// Allocate and, as nothing is allocated yet, never starts the container (GetDeviceRunContainerOptions in
// pkg/kubelet/cm/devicemanager, v1.34 and v1.37). The interlock makes containers wait there.
func (s *server) options() *v1beta1.DevicePluginOptions {
	return &v1beta1.DevicePluginOptions{PreStartRequired: s.config.CheckStart != nil, GetPreferredAllocationAvailable: true}
}

// GetDevicePluginOptions implements v1beta1.DevicePluginServer.
func (s *server) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return s.options(), nil
}

// ListAndWatch implements v1beta1.DevicePluginServer.
func (s *server) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	s.countStream(1)
	defer s.countStream(-1)
	for {
		pool, changed := s.current()
		if err := stream.Send(pool.list); err != nil {
			return fmt.Errorf("send the list of %s: %w", s.resource, err)
		}
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
func (s *server) GetPreferredAllocation(
	_ context.Context, request *v1beta1.PreferredAllocationRequest,
) (*v1beta1.PreferredAllocationResponse, error) {
	s.guard.interrupt()
	pool, _ := s.current()
	response := &v1beta1.PreferredAllocationResponse{}
	for _, container := range request.GetContainerRequests() {
		ids, err := pool.prefer(container.GetAvailableDeviceIDs(), container.GetMustIncludeDeviceIDs(), int(container.GetAllocationSize()))
		if err != nil {
			s.guard.interrupt() // This allocation has failed: see allocateGuard.
			return nil, s.refuse(err)
		}
		response.ContainerResponses = append(response.ContainerResponses, &v1beta1.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return response, nil
}

// Allocate implements v1beta1.DevicePluginServer: either all containers of the request get what they
// request, or none does.
func (s *server) Allocate(ctx context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	event, delay := s.guard.begin()
	// The kubelet would wait without a limit, on Linux also with its other pods.
	slow := errors.New("the disk of the allocation records does not respond")
	limit, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), s.timing.allocateTimeout, slow)
	defer cancel()
	made, err := bounded.Call(limit, func(context.Context) (allocated, error) { return s.allocate(ctx, request) })
	if err := s.guard.end(ctx, event, delay, err); err != nil {
		for _, id := range made.records {
			err = errors.Join(err, bounded.Do(limit, func(context.Context) error { return s.config.Recorder.End(id) }))
		}
		return nil, s.refuse(err)
	}
	for i, container := range request.GetContainerRequests() {
		fields := logrus.Fields{"replicas": container.GetDevicesIds()}
		if s.config.Inject == nil {
			fields["allocation"] = made.records[i]
		}
		s.log.WithFields(fields).Info("Allocated")
		s.config.Metrics.Allocations.WithLabelValues(s.resource).Inc()
	}
	return made.response, nil
}

// allocated is the response to a request, and the IDs of its records.
type allocated struct {
	response *v1beta1.AllocateResponse
	records  []allocation.ID
}

// allocate returns what it has made, also with an error.
func (s *server) allocate(ctx context.Context, request *v1beta1.AllocateRequest) (made allocated, err error) {
	pool, _ := s.current()
	made.response = &v1beta1.AllocateResponse{}
	for _, container := range request.GetContainerRequests() {
		replicas, err := pool.validate(container.GetDevicesIds())
		if err != nil {
			return made, err
		}
		if s.config.Inject != nil {
			injected, err := s.config.Inject(ctx, s.resource, replicas)
			if err != nil {
				return made, fmt.Errorf("allocate %s: %w", s.resource, err)
			}
			made.response.ContainerResponses = append(made.response.ContainerResponses, injected)
			continue
		}
		id, err := s.config.Recorder.Record(ctx, allocation.Record{Resource: s.resource, Replicas: replicas})
		if err != nil {
			return made, fmt.Errorf("allocate %s: %w", s.resource, err)
		}
		made.records = append(made.records, id)
		made.response.ContainerResponses = append(made.response.ContainerResponses, newResponse(s.resource, s.config.NodeOS, id))
	}
	return made, nil
}

// newResponse returns the response for a container: the ID of its allocation record, in an annotation, and the
// interlock, with which no runtime starts a container until the NRI plugin or the runtime shim has removed it.
//
// containerd refuses a Windows device that has a container path or permissions (WithWindowsDevices in
// pkg/cri/opts/spec_windows_opts.go, v1.7). For a container with several resources, the kubelet keeps
// one of the equal interlocks, which is enough.
func newResponse(resource, nodeOS string, id allocation.ID) *v1beta1.ContainerAllocateResponse {
	response := &v1beta1.ContainerAllocateResponse{Annotations: map[string]string{allocation.AnnotationKey(resource): string(id)}}
	if nodeOS == "windows" {
		response.Devices = []*v1beta1.DeviceSpec{{HostPath: allocation.InterlockDeviceType + "://" + allocation.InterlockDeviceID}}
	} else {
		response.Mounts = []*v1beta1.Mount{{ContainerPath: allocation.InterlockMount, HostPath: allocation.InterlockSource, ReadOnly: true}}
	}
	return response
}

// PreStartContainer implements v1beta1.DevicePluginServer. The kubelet calls it
// before every start of a container that holds a replica, and again later if it
// fails, if there is a [Config.CheckStart].
func (s *server) PreStartContainer(
	ctx context.Context, request *v1beta1.PreStartContainerRequest,
) (*v1beta1.PreStartContainerResponse, error) {
	if s.config.CheckStart == nil { // The kubelet may call it nevertheless.
		return &v1beta1.PreStartContainerResponse{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	began := time.Now()
	err := s.config.CheckStart(ctx)
	result := "passed"
	if err != nil {
		result = "refused"
		s.log.WithField("replicas", request.GetDevicesIds()).WithError(err).Warn("Container start refused")
		err = status.Errorf(codes.FailedPrecondition, "the container cannot start with its GPU now; the kubelet retries: %s",
			errlog.Text(err))
	}
	s.config.Metrics.StartChecks.WithLabelValues(s.resource, result).Observe(time.Since(began).Seconds())
	return &v1beta1.PreStartContainerResponse{}, err
}

// refuse logs and counts a request that failed with err, and returns the error for the kubelet.
func (s *server) refuse(err error) error {
	reason, code := "other", codes.Internal
	switch {
	case errors.Is(err, ErrInvalidRequest):
		reason, code = "invalid_request", codes.InvalidArgument
	case errors.Is(err, errConcurrent):
		reason, code = "concurrent", codes.Aborted
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		reason, code = "canceled", status.FromContextError(err).Code()
	case s.config.Inject != nil:
		reason = "gpu"
	}
	s.log.WithField("reason", reason).WithError(err).Warn("Allocation refused")
	s.config.Metrics.AllocationFailures.WithLabelValues(s.resource, reason).Inc()
	return status.Error(code, errlog.Text(err))
}
