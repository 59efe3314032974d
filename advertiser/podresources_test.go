package advertiser

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/grpctest"
)

// podLister is the kubelet's PodResources server. It refuses the first calls, as the
// kubelet does when there are too many.
type podLister struct {
	podresources.UnimplementedPodResourcesListerServer
	list    *podresources.ListPodResourcesResponse
	refused atomic.Int64
}

func (l *podLister) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	if l.refused.Add(-1) >= 0 {
		return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
	}
	return l.list, nil
}

// serve serves the lister until the test ends, and returns its socket.
func (l *podLister) serve(t *testing.T) (socket string) {
	t.Helper()
	socket = filepath.Join(testutil.ShortDir(t), "kubelet.sock")
	grpctest.Serve(t, socket, &podresources.PodResourcesLister_ServiceDesc, l)
	return socket
}

func TestContainers(t *testing.T) {
	t.Parallel()
	var many []*podresources.PodResources
	for i := range 43 {
		many = append(many, containersOf(fmt.Sprintf("%0100000d", i), &podresources.ContainerResources{Name: "main"}))
	}
	for _, test := range []struct {
		name string
		pods []*podresources.PodResources
		want int
	}{
		{name: "no pod", want: 0},
		{name: "with and without devices", pods: []*podresources.PodResources{containersOf("a", containerWith("main", "A::0"), containerWith("side")), containersOf("b", &podresources.ContainerResources{Name: "main"})}, want: 3},
		{name: "more than gRPC's default limit", pods: many, want: len(many)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			lister := &podLister{list: &podresources.ListPodResourcesResponse{PodResources: test.pods}}
			lister.refused.Store(3)
			got, err := listContainers(t.Context(), lister.serve(t))
			if err != nil || len(got) != test.want {
				t.Errorf("%d containers, %v; want %d", len(got), err, test.want)
			}
			for _, c := range got {
				if c.Pod.Namespace != "team" || c.Pod.Name == "" || c.Container == "" {
					t.Fatalf("%+v", c)
				}
			}
		})
	}
}

func TestContainersWithoutAnswer(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(testutil.ShortDir(t), "kubelet.sock")
	if got, err := listContainers(t.Context(), socket); err == nil || got != nil || !strings.Contains(err.Error(), socket) {
		t.Errorf("no kubelet: %v, %v", got, err)
	}
	lister := &podLister{}
	lister.refused.Store(1 << 40)
	ctx, cancel := context.WithTimeout(t.Context(), 3*retryDelay)
	defer cancel()
	if _, err := listContainers(ctx, lister.serve(t)); err == nil {
		t.Error("no error from a kubelet that refuses all calls")
	}
}
