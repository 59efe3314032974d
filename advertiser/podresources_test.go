package advertiser

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"directx-nri/internal/testutil"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

type podLister struct {
	podresources.UnimplementedPodResourcesListerServer
	list *podresources.ListPodResourcesResponse
}

func (l *podLister) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return l.list, nil
}

func pod(devices ...*podresources.ContainerDevices) *podresources.PodResources {
	return &podresources.PodResources{Containers: []*podresources.ContainerResources{{Name: "plain"}, {Name: "c", Devices: devices}}}
}

func TestPodResourcesHolders(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 60_000 {
		many = append(many, fmt.Sprintf("%s::%d", strings.Repeat("x", 90), i))
	}
	for _, test := range []struct {
		name string
		pods []*podresources.PodResources
		want []string
	}{
		{name: "no pod"},
		{name: "ours and others'", pods: []*podresources.PodResources{
			pod(&podresources.ContainerDevices{ResourceName: ResourceDisplay, DeviceIds: []string{"A::0", "A::1"}},
				&podresources.ContainerDevices{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"A::2"}}),
			pod(&podresources.ContainerDevices{ResourceName: ResourceCompute, DeviceIds: []string{"C::0"}}),
		}, want: []string{"A::0", "A::1", "C::0"}},
		{name: "more than gRPC takes by default", pods: []*podresources.PodResources{
			pod(&podresources.ContainerDevices{ResourceName: ResourceDisplay, DeviceIds: many})}, want: many},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(testutil.ShortDir(t), "kubelet.sock")
			listener, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer()
			podresources.RegisterPodResourcesListerServer(server, &podLister{list: &podresources.ListPodResourcesResponse{PodResources: test.pods}})
			served := make(chan error, 1)
			go func() { served <- server.Serve(listener) }()
			t.Cleanup(func() { server.Stop(); <-served })

			got, err := PodResourcesHolders(socket)(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]bool{}
			for _, id := range test.want {
				want[id] = true
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPodResourcesHoldersWithoutKubelet(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(testutil.ShortDir(t), "kubelet.sock")
	holders, err := PodResourcesHolders(socket)(t.Context())
	if err == nil || holders != nil || !strings.Contains(err.Error(), socket) {
		t.Errorf("got %v, %v", holders, err)
	}
}
