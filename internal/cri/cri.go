// Package cri reads the configuration and the containers of a node's containerd from its CRI socket.
package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/localgrpc"
)

// dial returns a connection to containerd's CRI socket, and a client that uses it.
func dial(socket string) (*grpc.ClientConn, runtime.RuntimeServiceClient, error) {
	connection, err := localgrpc.Dial(socket)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to containerd: %w", err)
	}
	return connection, runtime.NewRuntimeServiceClient(connection), nil
}

const (
	// maxSynchronizeBytes limits the message by which NRI sends all pods and containers to a plugin.
	// It splits a larger one, and can panic (v0.8.0 to v0.12.5): recalcObjsPerSyncMsg in
	// https://github.com/containerd/nri/blob/v0.12.5/pkg/adaptation/plugin.go
	maxSynchronizeBytes = 4 << 20
	// extraBytes is enough for the fields of a pod or container that only NRI's message has.
	extraBytes = 1 << 10
)

// ErrTooLarge means that containerd can crash when an NRI plugin registers.
var ErrTooLarge = errors.New("an NRI plugin cannot register")

// CheckSynchronizeSize returns an error that matches [ErrTooLarge] if containerd may have more pods and containers
// than it can send to an NRI plugin in one message.
func CheckSynchronizeSize(ctx context.Context, socket string) error {
	connection, client, err := dial(socket)
	if err != nil {
		return err
	}
	defer connection.Close()
	pods, err := client.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list containerd's pods: %w", err)
	}
	containers, err := client.ListContainers(ctx, &runtime.ListContainersRequest{})
	if err != nil {
		return fmt.Errorf("list containerd's containers: %w", err)
	}
	total, byPod := 0, map[string]int{}
	add := func(pod string, bytes int) { total, byPod[pod] = total+bytes+extraBytes, byPod[pod]+bytes+extraBytes }
	for _, p := range pods.GetItems() {
		add(p.GetId(), proto.Size(p))
	}
	for _, c := range containers.GetContainers() {
		if s := c.GetState(); s != runtime.ContainerState_CONTAINER_CREATED && s != runtime.ContainerState_CONTAINER_RUNNING {
			continue // NRI does not send it.
		}
		answer, err := client.ContainerStatus(ctx, &runtime.ContainerStatusRequest{ContainerId: c.GetId(), Verbose: true})
		if status.Code(err) == codes.NotFound {
			continue // It was removed after the list was made.
		}
		var info struct {
			Spec struct {
				Process, Mounts, Hooks, Annotations json.RawMessage
				Linux                               struct{ Devices, Resources json.RawMessage }
			} `json:"runtimeSpec"`
		}
		if err == nil {
			err = json.Unmarshal([]byte(answer.GetInfo()["info"]), &info)
		}
		if err != nil {
			return fmt.Errorf("get the size of container %s: %w", c.GetId(), err)
		}
		s := info.Spec
		size := proto.Size(c) + len(s.Process) + len(s.Mounts) + len(s.Hooks) + len(s.Annotations)
		add(c.GetPodSandboxId(), size+len(s.Linux.Devices)+len(s.Linux.Resources))
	}
	if total <= maxSynchronizeBytes {
		return nil
	}
	largest := &runtime.PodSandbox{}
	for _, p := range pods.GetItems() {
		if byPod[p.GetId()] > byPod[largest.GetId()] {
			largest = p
		}
	}
	return fmt.Errorf("%w: the pods and containers of this node have %d KiB of environment variables, annotations and the like, and containerd can crash when it sends more than %d KiB to a plugin; "+
		"delete the largest, such as pod %s/%s with %d KiB",
		ErrTooLarge, total>>10, maxSynchronizeBytes>>10, largest.GetMetadata().GetNamespace(), largest.GetMetadata().GetName(),
		byPod[largest.GetId()]>>10)
}
