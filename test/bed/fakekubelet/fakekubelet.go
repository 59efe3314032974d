// Package fakekubelet is a stand-in for the kubelet's device manager and its
// PodResources API, for machines and tests without a kubelet.
package fakekubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Kubelet accepts registrations of device plugins, follows the devices that they
// list, and allocates them.
type Kubelet struct {
	plugin.UnimplementedRegistrationServer
	podresources.UnimplementedPodResourcesListerServer

	dir    string
	server *grpc.Server
	group  sync.WaitGroup
	ctx    context.Context
	cancel context.CancelFunc

	mu        sync.Mutex
	endpoints map[string]*endpoint // by resource
}

// endpoint is a device plugin's server of one resource.
type endpoint struct {
	client  plugin.DevicePluginClient
	devices []*plugin.Device
	listed  bool
	inUse   map[string]bool
}

// Start serves registrations in the device plugin directory dir and, unless the
// path is empty, the PodResources API at podResources.
func Start(dir, podResources string) (*Kubelet, error) {
	k := &Kubelet{dir: dir, server: grpc.NewServer(), endpoints: map[string]*endpoint{}}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	plugin.RegisterRegistrationServer(k.server, k)
	podresources.RegisterPodResourcesListerServer(k.server, k)
	for _, socket := range []string{filepath.Join(dir, "kubelet.sock"), podResources} {
		if socket == "" {
			continue
		}
		if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		listener, err := net.Listen("unix", socket)
		if err != nil {
			k.Stop()
			return nil, err
		}
		k.group.Go(func() { _ = k.server.Serve(listener) })
	}
	return k, nil
}

// Stop ends the server and its connections.
func (k *Kubelet) Stop() {
	k.cancel()
	k.server.Stop()
	k.group.Wait()
}

// Register implements the registration service.
func (k *Kubelet) Register(_ context.Context, request *plugin.RegisterRequest) (*plugin.Empty, error) {
	connection, err := grpc.NewClient("unix:"+filepath.Join(k.dir, request.GetEndpoint()), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	e := &endpoint{client: plugin.NewDevicePluginClient(connection), inUse: map[string]bool{}}
	k.mu.Lock()
	k.endpoints[request.GetResourceName()] = e
	k.mu.Unlock()
	k.group.Go(func() {
		defer connection.Close()
		k.follow(e)
	})
	return &plugin.Empty{}, nil
}

// follow receives an endpoint's devices until its stream ends, and then has none.
func (k *Kubelet) follow(e *endpoint) {
	stream, err := e.client.ListAndWatch(k.ctx, &plugin.Empty{})
	for err == nil {
		var list *plugin.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			k.set(e, list.GetDevices())
		}
	}
	k.set(e, nil)
}

func (k *Kubelet) set(e *endpoint, devices []*plugin.Device) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e.devices, e.listed = devices, true
}

// Forget drops the devices of a resource until its plugin registers again.
func (k *Kubelet) Forget(resource string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.endpoints, resource)
}

// Wait waits until devices of the resource are listed and returns how many are
// healthy.
func (k *Kubelet) Wait(ctx context.Context, resource string) (int, error) {
	for {
		k.mu.Lock()
		e := k.endpoints[resource]
		if e != nil && e.listed {
			defer k.mu.Unlock()
			return len(e.healthy()), nil
		}
		k.mu.Unlock()
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return 0, fmt.Errorf("%s was not registered: %w", resource, context.Cause(ctx))
		}
	}
}

// healthy returns the IDs of the healthy devices.
func (e *endpoint) healthy() []string {
	var ids []string
	for _, d := range e.devices {
		if d.GetHealth() == plugin.Healthy {
			ids = append(ids, d.GetID())
		}
	}
	return ids
}

// Allocate chooses count free devices of a resource for a container, as the
// kubelet does, and returns their IDs and the plugin's response.
func (k *Kubelet) Allocate(ctx context.Context, resource string, count int) ([]string, *plugin.ContainerAllocateResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.endpoints[resource]
	if e == nil {
		return nil, nil, fmt.Errorf("%s is not registered", resource)
	}
	free := slices.DeleteFunc(e.healthy(), func(id string) bool { return e.inUse[id] })
	if len(free) < count {
		return nil, nil, fmt.Errorf("%d of %s requested, %d free", count, resource, len(free))
	}
	preferred, err := e.client.GetPreferredAllocation(ctx, &plugin.PreferredAllocationRequest{
		ContainerRequests: []*plugin.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: free, AllocationSize: int32(count)}},
	})
	if err != nil {
		return nil, nil, err
	}
	ids := preferred.GetContainerResponses()[0].GetDeviceIDs()
	response, err := e.client.Allocate(ctx, &plugin.AllocateRequest{ContainerRequests: []*plugin.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		e.inUse[id] = true
	}
	return ids, response.GetContainerResponses()[0], nil
}

// GetAllocatableResources implements the PodResources API.
func (k *Kubelet) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	response := &podresources.AllocatableResourcesResponse{}
	for resource, e := range k.endpoints {
		if ids := e.healthy(); len(ids) > 0 {
			response.Devices = append(response.Devices, &podresources.ContainerDevices{ResourceName: resource, DeviceIds: ids})
		}
	}
	return response, nil
}

// List implements the PodResources API: no container runs.
func (k *Kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{}, nil
}
