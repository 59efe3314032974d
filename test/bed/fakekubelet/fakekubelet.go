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

	// Windows is for a kubelet of Windows: it allocates when it creates a container, and
	// lists nothing as allocatable.
	Windows bool

	dir    string
	server *grpc.Server
	group  sync.WaitGroup
	ctx    context.Context
	cancel context.CancelFunc

	mu        sync.Mutex
	requests  []*plugin.RegisterRequest
	endpoints map[string]*Endpoint // by resource
}

// Endpoint is a device plugin's server of one resource.
type Endpoint struct {
	plugin.DevicePluginClient
	Conn *grpc.ClientConn

	mu      *sync.Mutex // the kubelet's
	devices []*plugin.Device
	lists   int   // how many answers were received, the end among them
	ended   error // why there will be no more
	inUse   map[string]bool
}

// Start empties the device plugin directory dir, which is created if necessary, and
// serves registrations there and, unless the path is empty, the PodResources API at
// podResources.
func Start(dir, podResources string) (*Kubelet, error) {
	if err := errors.Join(os.MkdirAll(dir, 0o750), Empty(dir)); err != nil {
		return nil, err
	}
	k := &Kubelet{dir: dir, server: grpc.NewServer(), endpoints: map[string]*Endpoint{}}
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
		listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
		if err != nil {
			k.Stop()
			return nil, err
		}
		listener.SetUnlinkOnClose(false)
		k.group.Go(func() { _ = k.server.Serve(listener) })
	}
	return k, nil
}

// Empty removes what is in a device plugin directory, as the kubelet does.
func Empty(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		if failed := os.Remove(filepath.Join(dir, entry.Name())); !errors.Is(failed, fs.ErrNotExist) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// Stop ends the server and its connections, as a kill does: the sockets stay.
func (k *Kubelet) Stop() {
	k.cancel()
	k.server.Stop()
	k.group.Wait()
}

// Requests returns all registrations, oldest first.
func (k *Kubelet) Requests() []*plugin.RegisterRequest {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.requests)
}

// Endpoint returns the newest endpoint of a resource, nil if there is none.
func (k *Kubelet) Endpoint(resource string) *Endpoint {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.endpoints[resource]
}

// Listed returns the newest list of devices, how many were received, and why there will
// be no more.
func (e *Endpoint) Listed() (devices []*plugin.Device, lists int, ended error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.devices, e.lists, e.ended
}

// Register implements the registration service.
func (k *Kubelet) Register(_ context.Context, request *plugin.RegisterRequest) (*plugin.Empty, error) {
	connection, err := grpc.NewClient("unix:"+filepath.Join(k.dir, request.GetEndpoint()), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	e := &Endpoint{DevicePluginClient: plugin.NewDevicePluginClient(connection), Conn: connection, mu: &k.mu, inUse: map[string]bool{}}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() != nil {
		return nil, errors.Join(k.ctx.Err(), connection.Close())
	}
	k.requests = append(k.requests, request)
	if old := k.endpoints[request.GetResourceName()]; old != nil {
		_ = old.Conn.Close()
	}
	k.endpoints[request.GetResourceName()] = e
	k.group.Go(func() {
		defer connection.Close()
		k.follow(e)
	})
	return &plugin.Empty{}, nil
}

// follow receives an endpoint's devices until its stream ends, and then has none.
func (k *Kubelet) follow(e *Endpoint) {
	stream, err := e.ListAndWatch(k.ctx, &plugin.Empty{})
	for err == nil {
		var list *plugin.ListAndWatchResponse
		list, err = stream.Recv()
		k.mu.Lock()
		e.devices, e.ended = list.GetDevices(), err
		e.lists++
		k.mu.Unlock()
	}
}

// Wait waits until devices of the resource are listed and returns how many are
// healthy.
func (k *Kubelet) Wait(ctx context.Context, resource string) (int, error) {
	for {
		k.mu.Lock()
		e := k.endpoints[resource]
		if e != nil && e.lists > 0 {
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
func (e *Endpoint) healthy() []string {
	var ids []string
	for _, d := range e.devices {
		if d.GetHealth() == plugin.Healthy {
			ids = append(ids, d.GetID())
		}
	}
	return ids
}

// Allocate chooses count free devices of a resource for a container, and returns their
// IDs and the plugin's response. On Windows it fails if the plugin requires
// PreStartContainer, which the kubelet calls before.
func (k *Kubelet) Allocate(ctx context.Context, resource string, count int) ([]string, *plugin.ContainerAllocateResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.endpoints[resource]
	if e == nil {
		return nil, nil, fmt.Errorf("%s is not registered", resource)
	}
	if options, err := e.GetDevicePluginOptions(ctx, &plugin.Empty{}); err != nil || k.Windows && options.GetPreStartRequired() {
		return nil, nil, errors.Join(err, fmt.Errorf("no devices of %s found allocated in local cache", resource))
	}
	free := slices.DeleteFunc(e.healthy(), func(id string) bool { return e.inUse[id] })
	if len(free) < count {
		return nil, nil, fmt.Errorf("%d of %s requested, %d free", count, resource, len(free))
	}
	preferred, err := e.GetPreferredAllocation(ctx, &plugin.PreferredAllocationRequest{
		ContainerRequests: []*plugin.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: free, AllocationSize: int32(count)}},
	})
	if err != nil {
		return nil, nil, err
	}
	ids := preferred.GetContainerResponses()[0].GetDeviceIDs()
	response, err := e.Allocate(ctx, &plugin.AllocateRequest{ContainerRequests: []*plugin.ContainerAllocateRequest{{DevicesIds: ids}}})
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
	if k.Windows {
		return response, nil
	}
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
