package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// kubelet stands in for the kubelet's device manager: it takes registrations,
// follows what is advertised, and allocates.
type kubelet struct {
	plugin.UnimplementedRegistrationServer

	folder string
	server *grpc.Server
	group  sync.WaitGroup
	ctx    context.Context
	cancel context.CancelFunc

	mu        sync.Mutex
	endpoints map[string]*endpoint // by resource
	changed   chan struct{}
}

type endpoint struct {
	connection *grpc.ClientConn
	client     plugin.DevicePluginClient
	devices    []*plugin.Device
	listed     bool
	inUse      map[string]bool
}

func startKubelet(ctx context.Context, folder string) (*kubelet, error) {
	listener, err := net.Listen("unix", filepath.Join(folder, "kubelet.sock"))
	if err != nil {
		return nil, err
	}
	k := &kubelet{folder: folder, server: grpc.NewServer(), endpoints: map[string]*endpoint{}, changed: make(chan struct{}, 1)}
	k.ctx, k.cancel = context.WithCancel(ctx)
	plugin.RegisterRegistrationServer(k.server, k)
	k.group.Go(func() { _ = k.server.Serve(listener) })
	return k, nil
}

// Register implements the kubelet's registration service.
func (k *kubelet) Register(_ context.Context, request *plugin.RegisterRequest) (*plugin.Empty, error) {
	connection, err := grpc.NewClient("unix:"+filepath.Join(k.folder, request.GetEndpoint()), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	e := &endpoint{connection: connection, client: plugin.NewDevicePluginClient(connection), inUse: map[string]bool{}}
	k.mu.Lock()
	k.endpoints[request.GetResourceName()] = e
	k.mu.Unlock()
	k.group.Go(func() { k.follow(e) })
	return &plugin.Empty{}, nil
}

func (k *kubelet) follow(e *endpoint) {
	stream, err := e.client.ListAndWatch(k.ctx, &plugin.Empty{})
	for err == nil {
		var list *plugin.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			k.mu.Lock()
			e.devices, e.listed = list.GetDevices(), true
			k.mu.Unlock()
			select {
			case k.changed <- struct{}{}:
			default:
			}
		}
	}
}

// await returns what is advertised for resources once each has been heard of.
func (k *kubelet) await(ctx context.Context, resources ...string) (map[string][]*plugin.Device, error) {
	for {
		if lists, ok := k.lists(resources); ok {
			return lists, nil
		}
		select {
		case <-k.changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("directx-advertiser did not register: %w", context.Cause(ctx))
		}
	}
}

func (k *kubelet) lists(resources []string) (map[string][]*plugin.Device, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	lists := map[string][]*plugin.Device{}
	for _, r := range resources {
		e, ok := k.endpoints[r]
		if !ok || !e.listed {
			return nil, false
		}
		lists[r] = e.devices
	}
	return lists, true
}

// allocate chooses replicas of resource for a container as the kubelet does,
// and returns their IDs and the device plugin's answer.
func (k *kubelet) allocate(ctx context.Context, resource string, count int) ([]string, *plugin.ContainerAllocateResponse, error) {
	k.mu.Lock()
	e := k.endpoints[resource]
	var free []string
	for _, d := range e.devices {
		if d.GetHealth() == plugin.Healthy && !e.inUse[d.GetID()] {
			free = append(free, d.GetID())
		}
	}
	k.mu.Unlock()
	if len(free) < count {
		return nil, nil, fmt.Errorf("%d of %s asked for, %d free", count, resource, len(free))
	}
	preferred, err := e.client.GetPreferredAllocation(ctx, &plugin.PreferredAllocationRequest{
		ContainerRequests: []*plugin.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: free, AllocationSize: int32(count)}},
	})
	if err != nil {
		return nil, nil, err
	}
	ids := slices.Clone(preferred.GetContainerResponses()[0].GetDeviceIDs())
	answer, err := e.client.Allocate(ctx, &plugin.AllocateRequest{ContainerRequests: []*plugin.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return nil, nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range ids {
		e.inUse[id] = true
	}
	return ids, answer.GetContainerResponses()[0], nil
}

// preStart asks whether a container that holds ids may be created.
func (k *kubelet) preStart(ctx context.Context, resource string, ids []string) error {
	k.mu.Lock()
	e := k.endpoints[resource]
	k.mu.Unlock()
	_, err := e.client.PreStartContainer(ctx, &plugin.PreStartContainerRequest{DevicesIds: ids})
	return err
}

func (k *kubelet) close() error {
	k.cancel()
	k.server.Stop()
	var errs []error
	k.mu.Lock()
	for _, e := range k.endpoints {
		errs = append(errs, e.connection.Close())
	}
	k.mu.Unlock()
	k.group.Wait()
	return errors.Join(errs...)
}
