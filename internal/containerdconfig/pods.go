package containerdconfig

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Sandbox is a pod sandbox that is ready.
type Sandbox struct {
	// Namespace and Name are the pod's.
	Namespace, Name string
	// Handler is the runtime handler that the pod requests, "" for the default.
	Handler string
}

// Sandboxes returns the pod sandboxes that are ready. containerd starts containers
// in no others.
func Sandboxes(ctx context.Context, connection grpc.ClientConnInterface) ([]Sandbox, error) {
	items, err := listSandboxes(ctx, connection, &cri.PodSandboxFilter{State: &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY}})
	var sandboxes []Sandbox
	for _, item := range items {
		sandboxes = append(sandboxes, Sandbox{item.GetMetadata().GetNamespace(), item.GetMetadata().GetName(), handlerOf(item)})
	}
	return sandboxes, err
}

func listSandboxes(ctx context.Context, connection grpc.ClientConnInterface, filter *cri.PodSandboxFilter) ([]*cri.PodSandbox, error) {
	list, err := cri.NewRuntimeServiceClient(connection).ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("list containerd's pods: %w", err)
	}
	return list.GetItems(), nil
}

// handlerOf returns the handler that a sandbox requests. A pod without a
// RuntimeClass can request the handler "untrusted" by an annotation, which the
// list does not show (GetSandboxRuntime in containerd's CRI plugin).
func handlerOf(sandbox *cri.PodSandbox) string {
	if sandbox.GetAnnotations()["io.kubernetes.cri.untrusted-workload"] == "true" {
		return "untrusted"
	}
	return sandbox.GetRuntimeHandler()
}

// Pod is a pod that containerd has a sandbox of.
type Pod struct {
	Namespace, Name string
	// Ready reports whether one of its sandboxes is ready.
	Ready bool
}

// Pods returns the pods that containerd has a sandbox of, by UID.
func Pods(ctx context.Context, connection grpc.ClientConnInterface) (map[string]Pod, error) {
	items, err := listSandboxes(ctx, connection, nil)
	if err != nil {
		return nil, err
	}
	pods := map[string]Pod{}
	for _, item := range items {
		metadata := item.GetMetadata()
		ready := pods[metadata.GetUid()].Ready || item.GetState() == cri.PodSandboxState_SANDBOX_READY
		pods[metadata.GetUid()] = Pod{metadata.GetNamespace(), metadata.GetName(), ready}
	}
	return pods, nil
}
