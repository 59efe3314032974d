package deviceplugin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
)

const podResourcesTimeout = 2 * time.Second

// retryDelay is the time to wait when the kubelet limits the rate of calls: it
// accepts 100 a second, and a burst of ten, from all clients together
// (pkg/kubelet/apis/podresources/constants.go, v1.34).
const retryDelay = 50 * time.Millisecond

// podName identifies a pod.
type podName struct{ namespace, name string }

// String returns namespace and name with a slash between.
func (p podName) String() string { return p.namespace + "/" + p.name }

// containerDevices are the replicas that a container holds.
type containerDevices struct {
	pod       podName
	container string
	// replicaIDs are by resource.
	replicaIDs map[string][]string
}

// holdsAny reports whether c holds one of the record's replicas.
func (c containerDevices) holdsAny(record allocation.Entry) bool {
	held := c.replicaIDs[record.Resource]
	return slices.ContainsFunc(record.Replicas, func(r allocation.Replica) bool { return slices.Contains(held, r.ID) })
}

// listContainers returns all containers of the active pods, without ordinary init containers, of the
// kubelet that serves its PodResources API on socket, or nil and an error.
func listContainers(ctx context.Context, socket string) ([]containerDevices, error) {
	ctx, cancel := context.WithTimeout(ctx, podResourcesTimeout)
	defer cancel()
	conn, err := localgrpc.Dial(socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	client := podresources.NewPodResourcesListerClient(conn)
	list, err := client.List(ctx, &podresources.ListPodResourcesRequest{})
	for status.Code(err) == codes.ResourceExhausted && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(retryDelay):
		}
		list, err = client.List(ctx, &podresources.ListPodResourcesRequest{})
	}
	if err != nil {
		return nil, fmt.Errorf("list pods of the kubelet on %s: %w", socket, err)
	}
	containers := []containerDevices{}
	for _, pod := range list.GetPodResources() {
		for _, container := range pod.GetContainers() {
			name := podName{pod.GetNamespace(), pod.GetName()}
			c := containerDevices{pod: name, container: container.GetName(), replicaIDs: map[string][]string{}}
			for _, devices := range container.GetDevices() {
				c.replicaIDs[devices.GetResourceName()] = append(c.replicaIDs[devices.GetResourceName()], devices.GetDeviceIds()...)
			}
			containers = append(containers, c)
		}
	}
	return containers, nil
}
