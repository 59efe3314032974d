package crihandlers

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Sandbox is a pod's sandbox in which containers can be started.
type Sandbox struct {
	// Namespace and Name are the pod's.
	Namespace, Name string
	// Handler is what the pod asked containerd for, "" for its default.
	Handler string
}

// Sandboxes returns the pod sandboxes that are ready. containerd starts
// containers in no other.
func Sandboxes(ctx context.Context, connection grpc.ClientConnInterface) ([]Sandbox, error) {
	list, err := cri.NewRuntimeServiceClient(connection).ListPodSandbox(ctx, &cri.ListPodSandboxRequest{
		Filter: &cri.PodSandboxFilter{State: &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY}},
	})
	if err != nil {
		return nil, fmt.Errorf("ask containerd for its pods: %w", err)
	}
	var sandboxes []Sandbox
	for _, item := range list.GetItems() {
		sandboxes = append(sandboxes, Sandbox{
			Namespace: item.GetMetadata().GetNamespace(), Name: item.GetMetadata().GetName(), Handler: handlerOf(item),
		})
	}
	return sandboxes, nil
}

// handlerOf returns what a sandbox asked for. A pod that names no RuntimeClass
// chooses the handler "untrusted" by an annotation, in all versions of
// containerd, and the list does not say so (getSandboxRuntime in 1.7's
// pkg/cri/server/sandbox_run.go, GetSandboxRuntime in 2.4's
// internal/cri/config/config.go).
func handlerOf(sandbox *cri.PodSandbox) string {
	if sandbox.GetAnnotations()["io.kubernetes.cri.untrusted-workload"] == "true" {
		return "untrusted"
	}
	return sandbox.GetRuntimeHandler()
}

// Pod is a pod that containerd has a sandbox of.
type Pod struct {
	Namespace, Name string
	// Ready tells that one of its sandboxes is ready.
	Ready bool
}

// Pods returns the pods that containerd has a sandbox of, by UID.
func Pods(ctx context.Context, connection grpc.ClientConnInterface) (map[string]Pod, error) {
	list, err := cri.NewRuntimeServiceClient(connection).ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask containerd for its pods: %w", err)
	}
	pods := map[string]Pod{}
	for _, item := range list.GetItems() {
		metadata := item.GetMetadata()
		ready := pods[metadata.GetUid()].Ready || item.GetState() == cri.PodSandboxState_SANDBOX_READY
		pods[metadata.GetUid()] = Pod{metadata.GetNamespace(), metadata.GetName(), ready}
	}
	return pods, nil
}
