package advertiser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"directx-nri/internal/testutil"
)

// podLister is the kubelet's PodResources server. The first questions it refuses,
// as the kubelet does when there are too many.
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
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, l)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-served })
	return socket
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
			lister := &podLister{list: &podresources.ListPodResourcesResponse{PodResources: test.pods}}
			socket := lister.serve(t)
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

// podWith is a pod with one container for each list of IDs, "" for none.
func podWith(namespace, name, resource string, containers ...string) *podresources.PodResources {
	pod := &podresources.PodResources{Namespace: namespace, Name: name}
	for _, ids := range containers {
		c := &podresources.ContainerResources{}
		// The kubelet makes one entry for each NUMA node.
		for _, id := range strings.Fields(ids) {
			c.Devices = append(c.Devices, &podresources.ContainerDevices{ResourceName: resource, DeviceIds: []string{id}})
		}
		pod.Containers = append(pod.Containers, c)
	}
	return pod
}

func TestHolder(t *testing.T) {
	t.Parallel()
	others := []*podresources.PodResources{
		podWith("default", "none", ResourceDisplay, ""),
		podWith("default", "other", ResourceDisplay, "B::0 B::1"),
		// IDs are the same for two resources when a GPU changed its kind.
		podWith("default", "compute", ResourceCompute, "A::0"),
	}
	for name, test := range map[string]struct {
		pods    []*podresources.PodResources
		want    string
		wantErr string
	}{
		"its only container":                {[]*podresources.PodResources{podWith("team", "p", ResourceDisplay, "A::0 A::1")}, "team/p", ""},
		"its second container":              {[]*podresources.PodResources{podWith("team", "p", ResourceDisplay, "C::0", "A::1 A::0")}, "team/p", ""},
		"two containers, as an init's":      {[]*podresources.PodResources{podWith("team", "p", ResourceDisplay, "A::0", "A::1")}, "team/p", ""},
		"part of it, as an init's":          {[]*podresources.PodResources{podWith("team", "p", ResourceDisplay, "A::1")}, "team/p", ""},
		"nobody, as what only an init has":  {nil, "", "display A::0, A::1: the kubelet does not tell whose they are, as with those of init containers"},
		"two pods":                          {[]*podresources.PodResources{podWith("team", "p", ResourceDisplay, "A::0"), podWith("team", "q", ResourceDisplay, "A::1")}, "", "team/p and team/q both"},
		"a pod and its namesake made since": {[]*podresources.PodResources{podWith("team", "p", ResourceDisplay, "A::0"), podWith("team", "p", ResourceDisplay, "C::0")}, "team/p", ""},
	} {
		got, err := holder(append(test.pods, others...), Start{Resource: ResourceDisplay, ReplicaIDs: []string{"A::0", "A::1"}})
		switch {
		case test.wantErr != "":
			if !errors.Is(err, ErrNoHolder) || !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("%s: error %v, want %q", name, err, test.wantErr)
			}
		case err != nil || got.String() != test.want:
			t.Errorf("%s: %v, %v, want %s", name, got, err, test.want)
		}
	}
}

func TestPodResourcesHolder(t *testing.T) {
	t.Parallel()
	lister := &podLister{list: &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{podWith("team", "p", ResourceDisplay, "A::0")}}}
	lister.refused.Store(3)
	socket := lister.serve(t)
	start := Start{Resource: ResourceDisplay, ReplicaIDs: []string{"A::0"}}
	if pod, err := PodResourcesHolder(socket)(t.Context(), start); err != nil || pod != (Pod{"team", "p"}) {
		t.Errorf("after three refusals: %v, %v", pod, err)
	}
	if _, err := PodResourcesHolder(socket+"x")(t.Context(), start); err == nil || !strings.Contains(err.Error(), socket+"x") || !strings.Contains(err.Error(), "A::0") {
		t.Errorf("no kubelet: %v", err)
	}
	lister.refused.Store(1 << 40)
	ctx, cancel := context.WithTimeout(t.Context(), 3*busyPause)
	defer cancel()
	if _, err := PodResourcesHolder(socket)(ctx, start); err == nil || errors.Is(err, ErrNoHolder) {
		t.Errorf("a kubelet that is asked too often: %v", err)
	}
}
