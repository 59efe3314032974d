package grpctest

import (
	"context"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// containerd is a CRI service with the container c1 of the sandbox s.
type containerd struct {
	runtime.UnimplementedRuntimeServiceServer
	container, pod map[string]string // annotations
}

// ServeAnnotations serves, at a Unix socket, a CRI service that has the container c1 of the sandbox s with these annotations.
func ServeAnnotations(t testing.TB, container, pod map[string]string) (socket string) {
	t.Helper()
	socket = filepath.Join(testutil.ShortDir(t), "s")
	Serve(t, socket, &runtime.RuntimeService_ServiceDesc, &containerd{container: container, pod: pod})
	return socket
}

func (c *containerd) ContainerStatus(_ context.Context, r *runtime.ContainerStatusRequest) (*runtime.ContainerStatusResponse, error) {
	if r.GetContainerId() != "c1" || r.GetVerbose() {
		return nil, status.Error(codes.NotFound, "no container \"x\":\n100%")
	}
	s := &runtime.ContainerStatus{Id: "c1", Labels: map[string]string{"label": "x"}, Annotations: c.container}
	return &runtime.ContainerStatusResponse{Status: s, Info: map[string]string{"info": "{}"}}, nil
}

func (c *containerd) PodSandboxStatus(_ context.Context, r *runtime.PodSandboxStatusRequest) (*runtime.PodSandboxStatusResponse, error) {
	if r.GetPodSandboxId() != "s" {
		return nil, status.Error(codes.NotFound, "no sandbox")
	}
	s := &runtime.PodSandboxStatus{Id: "s", Labels: map[string]string{"label": "x"}, Annotations: c.pod}
	return &runtime.PodSandboxStatusResponse{Status: s}, nil
}
