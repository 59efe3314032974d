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
	s.streamOpened()
	defer s.streamClosed()
	var sent *pool
	for {
		pool, replaced := s.current()
		if sent == nil || !pool.sameList(sent) {
			if err := stream.Send(pool.list()); err != nil {
				return fmt.Errorf("send the list of %s: %w", s.resource, err)
			}
		}
		sent = pool
		select {
		case <-replaced:
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
			s.guard.interrupt() // No call of Allocate follows.
			return nil, s.refuse(err)
		}
		response.ContainerResponses = append(response.ContainerResponses, &v1beta1.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return response, nil
}

// Allocate implements v1beta1.DevicePluginServer: either all containers of the request get what they
// request, or none does.
func (s *server) Allocate(ctx context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	var response *v1beta1.AllocateResponse
	var ids []allocation.ID
	err := s.guard.do(ctx, func() (err error) {
		response, ids, err = s.allocate(ctx, request)
		return err
	})
	if err != nil {
		for _, id := range ids {
			err = errors.Join(err, s.config.Recorder.End(id))
		}
		return nil, s.refuse(err)
	}
	for i, id := range ids {
		replicas := request.GetContainerRequests()[i].GetDevicesIds()
		s.log.WithFields(logrus.Fields{"allocation": id, "replicas": replicas}).Info("Allocated")
		s.config.Metrics.Allocations.WithLabelValues(s.resource).Inc()
	}
	return response, nil
}

// allocate validates the whole request before it records anything. It returns the
// IDs of all records, also with an error.
func (s *server) allocate(ctx context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, []allocation.ID, error) {
	pool, _ := s.current()
	var containers [][]allocation.Replica
	for _, container := range request.GetContainerRequests() {
		replicas, err := pool.validate(container.GetDevicesIds())
		if err != nil {
			return nil, nil, err
		}
		containers = append(containers, replicas)
	}
	response, ids := &v1beta1.AllocateResponse{}, make([]allocation.ID, 0, len(containers))
	for _, replicas := range containers {
		id, err := s.config.Recorder.Record(ctx,
			allocation.Record{Resource: s.resource, Replicas: replicas, ByKubelet: s.config.KubeletAnswer != nil})
		if err != nil {
			return nil, ids, fmt.Errorf("allocate %s: %w", s.resource, err)
		}
		ids = append(ids, id)
		answer, err := s.answer(ctx, id, replicas)
		if err != nil {
			return nil, ids, fmt.Errorf("allocate %s: %w", s.resource, err)
		}
		response.ContainerResponses = append(response.ContainerResponses, answer)
	}
	return response, ids, nil
}

// PreStartContainer implements v1beta1.DevicePluginServer. The kubelet calls it
// before every start of a container that holds a replica, and again later if it
// fails, if there is a [Config.CheckStart].
func (s *server) PreStartContainer(
	ctx context.Context, request *v1beta1.PreStartContainerRequest,
) (*v1beta1.PreStartContainerResponse, error) {
	if err := s.checkStart(ctx); err != nil {
		s.log.WithField("replicas", request.GetDevicesIds()).WithError(err).Warn("Container start refused")
		return nil, status.Error(codes.FailedPrecondition, errlog.ErrorLine(err))
	}
	return &v1beta1.PreStartContainerResponse{}, nil
}

var errNotReady = errors.New("the container cannot start with its GPU now; the kubelet retries")

// checkStart calls [Config.CheckStart] with a time limit. Its error matches errNotReady.
func (s *server) checkStart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	began := time.Now()
	var err error
	if s.config.CheckStart != nil { // The kubelet may call it nevertheless.
		err = s.config.CheckStart(ctx)
	}
	result := "passed"
	if err != nil {
		err, result = fmt.Errorf("%w: %w", errNotReady, err), "refused"
	}
	s.config.Metrics.StartChecks.WithLabelValues(s.resource, result).Observe(time.Since(began).Seconds())
	return err
}

// refuse logs and counts a request that failed with err, and returns the error for the kubelet.
func (s *server) refuse(err error) error {
	reason, code := classify(err)
	s.log.WithField("reason", reason).WithError(err).Warn("Allocation refused")
	s.config.Metrics.AllocationFailures.WithLabelValues(s.resource, reason).Inc()
	return status.Error(code, errlog.ErrorLine(err))
}

// classify returns the value of the reason label of metrics for err, and its gRPC code.
func classify(err error) (reason string, code codes.Code) {
	switch {
	case errors.Is(err, errInvalidRequest):
		return "invalid_request", codes.InvalidArgument
	case errors.Is(err, ErrNotExpressible):
		return "not_expressible", codes.InvalidArgument
	case errors.Is(err, errConcurrent):
		return "concurrent", codes.Aborted
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "canceled", status.FromContextError(err).Code()
	case errors.Is(err, errAnswer):
		return "gpu", codes.Internal
	}
	return "other", codes.Internal
}

// KubeletAnswer returns the answer to the kubelet that gives one container GPUs of a resource. It is for
// nodes with neither the NRI plugin nor the runtime shim. If no answer can express the request, the
// error matches [ErrNotExpressible].
//
// The kubelet repeats the answer at each start of the container. It merges the
// answers of several resources by ContainerPath of devices and mounts and by name of
// environment variables, and of two with the same key it drops an arbitrary one
// (deviceRunContainerOptions in pkg/kubelet/cm/devicemanager, v1.34).
type KubeletAnswer func(ctx context.Context, resource string, replicas []allocation.Replica) (*v1beta1.ContainerAllocateResponse, error)

// ErrNotExpressible is returned for a request that an answer to the kubelet cannot express.
var ErrNotExpressible = errors.New("the response of a device plugin cannot express this request")

var errAnswer = errors.New("the kubelet cannot give the container its GPUs")

// answer returns the answer for a container with these replicas. Without [Config.KubeletAnswer] it has
// the ID of the container's allocation record, in an annotation, and the interlock, with which no runtime starts
// a container until the NRI plugin or the runtime shim has removed it.
//
// containerd refuses a Windows device that has a container path or permissions (WithWindowsDevices in
// pkg/cri/opts/spec_windows_opts.go, v1.7). For a container with several resources, the kubelet keeps
// one of the equal interlocks, which is enough.
func (s *server) answer(
	ctx context.Context, id allocation.ID, replicas []allocation.Replica,
) (*v1beta1.ContainerAllocateResponse, error) {
	if s.config.KubeletAnswer != nil {
		answer, err := s.config.KubeletAnswer(ctx, s.resource, replicas)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errAnswer, err)
		}
		return answer, nil
	}
	answer := &v1beta1.ContainerAllocateResponse{
		Annotations: map[string]string{allocation.AnnotationKey(s.resource): string(id)},
	}
	if s.config.NodeOS == "windows" {
		answer.Devices = []*v1beta1.DeviceSpec{{HostPath: allocation.InterlockDeviceType + "://" + allocation.InterlockDeviceID}}
	} else {
		answer.Mounts = []*v1beta1.Mount{{ContainerPath: allocation.InterlockMount, HostPath: allocation.InterlockSource, ReadOnly: true}}
	}
	return answer, nil
}
