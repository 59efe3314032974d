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

func TestPodResourcesPods(t *testing.T) {
	t.Parallel()
	var many []*podresources.PodResources
	want := map[string]bool{}
	for i := range 60_000 {
		many = append(many, &podresources.PodResources{Namespace: strings.Repeat("x", 60), Name: fmt.Sprint("pod-", i)})
		want[fmt.Sprintf("%s/pod-%d", strings.Repeat("x", 60), i)] = true
	}
	for _, test := range []struct {
		name string
		pods []*podresources.PodResources
		want map[string]bool
	}{
		{name: "no pod", want: map[string]bool{}},
		{name: "with and without devices", pods: []*podresources.PodResources{
			{Namespace: "default", Name: "a", Containers: []*podresources.ContainerResources{{Name: "main", Devices: []*podresources.ContainerDevices{
				{ResourceName: ResourceDisplay, DeviceIds: []string{"A::0"}}}}}},
			// What only an init container has is not told.
			{Namespace: "default", Name: "b", Containers: []*podresources.ContainerResources{{Name: "main"}}},
			{Namespace: "kube-system", Name: "a"},
		}, want: map[string]bool{"default/a": true, "default/b": true, "kube-system/a": true}},
		{name: "more than gRPC takes by default", pods: many, want: want},
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

			got, err := PodResourcesPods(socket)(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPodResourcesPodsWithoutKubelet(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(testutil.ShortDir(t), "kubelet.sock")
	pods, err := PodResourcesPods(socket)(t.Context())
	if err == nil || pods != nil || !strings.Contains(err.Error(), socket) {
		t.Errorf("got %v, %v", pods, err)
	}
}
