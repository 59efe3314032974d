//go:build e2e && linux

package doctor

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// kubelet stands in for the kubelet's device manager and PodResources API: a
// real one has its folder at one fixed place.
type kubelet struct {
	plugin.UnimplementedRegistrationServer
	podresources.UnimplementedPodResourcesListerServer

	folder, podResources string
	server               *grpc.Server
	group                sync.WaitGroup
	ctx                  context.Context
	cancel               context.CancelFunc

	mu      sync.Mutex
	clients map[string]plugin.DevicePluginClient
	devices map[string][]string // those that are healthy, by resource
}

func startKubelet(t *testing.T, folder, podResources string) *kubelet {
	t.Helper()
	k := &kubelet{
		folder: folder, podResources: podResources, server: grpc.NewServer(),
		clients: map[string]plugin.DevicePluginClient{}, devices: map[string][]string{},
	}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	plugin.RegisterRegistrationServer(k.server, k)
	podresources.RegisterPodResourcesListerServer(k.server, k)
	for _, socket := range []string{filepath.Join(folder, "kubelet.sock"), podResources} {
		if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		k.group.Go(func() { _ = k.server.Serve(listener) })
	}
	return k
}

func (k *kubelet) stop() {
	k.cancel()
	k.server.Stop()
	k.group.Wait()
}

// Register implements the kubelet's registration service.
func (k *kubelet) Register(_ context.Context, request *plugin.RegisterRequest) (*plugin.Empty, error) {
	connection, err := grpc.NewClient("unix:"+filepath.Join(k.folder, request.GetEndpoint()), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	client := plugin.NewDevicePluginClient(connection)
	k.mu.Lock()
	k.clients[request.GetResourceName()] = client
	k.mu.Unlock()
	k.group.Go(func() {
		defer connection.Close()
		k.follow(request.GetResourceName(), client)
	})
	return &plugin.Empty{}, nil
}

func (k *kubelet) follow(resource string, client plugin.DevicePluginClient) {
	stream, err := client.ListAndWatch(k.ctx, &plugin.Empty{})
	for err == nil {
		var list *plugin.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			k.set(resource, list.GetDevices())
		}
	}
	k.set(resource, nil)
}

func (k *kubelet) set(resource string, devices []*plugin.Device) {
	var ids []string
	for _, d := range devices {
		if d.GetHealth() == plugin.Healthy {
			ids = append(ids, d.GetID())
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.devices[resource] = ids
}

// GetAllocatableResources implements the PodResources API.
func (k *kubelet) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	answer := &podresources.AllocatableResourcesResponse{}
	for resource, ids := range k.devices {
		if len(ids) > 0 {
			answer.Devices = append(answer.Devices, &podresources.ContainerDevices{ResourceName: resource, DeviceIds: ids})
		}
	}
	return answer, nil
}

// List implements the PodResources API: no pod has a container yet.
func (k *kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{}, nil
}

// allocate has a replica of resource be recorded for a container.
func (k *kubelet) allocate(ctx context.Context, resource string) (token string, err error) {
	k.mu.Lock()
	client, ids := k.clients[resource], k.devices[resource]
	k.mu.Unlock()
	if client == nil || len(ids) == 0 {
		return "", errors.New("nothing is offered")
	}
	answer, err := client.Allocate(ctx, &plugin.AllocateRequest{ContainerRequests: []*plugin.ContainerAllocateRequest{{DevicesIds: ids[:1]}}})
	if err != nil {
		return "", err
	}
	for _, value := range answer.GetContainerResponses()[0].GetEnvs() {
		token = value
	}
	return token, nil
}
