package advertiser

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/testutil"
)

// callLog is an observer that records its calls.
type callLog struct {
	mu     sync.Mutex
	events []string
}

func (o *callLog) add(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, fmt.Sprintf(format, args...))
}

func (o *callLog) Allocated(resource string)                { o.add("allocated %s", resource) }
func (o *callLog) AllocationFailed(resource, reason string) { o.add("failed %s: %s", resource, reason) }
func (o *callLog) StartChecked(resource string, _ time.Duration, passed bool) {
	o.add("checked %s: %t", resource, passed)
}

func (o *callLog) all() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.events)
}

// injectDevices answers with one device for each GPU.
func injectDevices(_ context.Context, _ string, ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	answer := &v1beta1.ContainerAllocateResponse{}
	for _, id := range ids {
		answer.Devices = append(answer.Devices, &v1beta1.DeviceSpec{HostPath: "/dev/" + id, ContainerPath: "/dev/" + id})
	}
	return answer, nil
}

func TestInjection(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	records := filepath.Join(t.TempDir(), "allocations")
	recorder, err := allocation.OpenRecorder(t.Context(), records, testutil.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer recorder.Close()
	k := startKubelet(t, dir)
	config := testConfig(t, dir, newSource(displayGPU("A"), displayGPU("B")))
	observer := &callLog{}
	config.Recorder, config.Inject, config.Ready, config.Observer = recorder, injectDevices, nil, observer
	run(t, config)
	k.await(ResourceDisplay, "A::0 A::1 B::0 B::1")

	client := k.client(ResourceDisplay)
	options, err := client.GetDevicePluginOptions(t.Context(), &v1beta1.Empty{})
	if err != nil || options.GetPreStartRequired() || !options.GetGetPreferredAllocationAvailable() {
		t.Errorf("options %v, %v: no check before a start is necessary", options, err)
	}
	for _, request := range k.registrations() {
		if request.GetOptions().GetPreStartRequired() {
			t.Errorf("registered as %v", request)
		}
	}
	got, err := client.Allocate(t.Context(), &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{
		{DevicesIds: []string{"A::0", "A::1", "B::0"}}, {DevicesIds: []string{"B::1"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	device := func(id string) *v1beta1.DeviceSpec {
		return &v1beta1.DeviceSpec{HostPath: "/dev/" + id, ContainerPath: "/dev/" + id}
	}
	want := &v1beta1.AllocateResponse{ContainerResponses: []*v1beta1.ContainerAllocateResponse{
		{Devices: []*v1beta1.DeviceSpec{device("A"), device("B")}}, {Devices: []*v1beta1.DeviceSpec{device("B")}},
	}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("the answer has a token, or not what was made (-want +got):\n%s", diff)
	}
	if live := recorder.Live(); len(live) != 2 || !live[0].Injected || !live[1].Injected {
		t.Errorf("records %+v", live)
	}
	if _, err := client.PreStartContainer(t.Context(), &v1beta1.PreStartContainerRequest{DevicesIds: []string{"A::0"}}); err != nil {
		t.Errorf("PreStartContainer is refused: %v", err)
	}
	if diff := cmp.Diff([]string{"allocated " + ResourceDisplay, "allocated " + ResourceDisplay}, observer.all()); diff != "" {
		t.Error(diff)
	}
}

func TestInjectionFails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err    error
		code   codes.Code
		reason string
	}{
		"the request's fault": {fmt.Errorf("two GPUs: %w", ErrNotInjectable), codes.InvalidArgument, "not_injectable"},
		"this node's fault":   {errors.New("no driver"), codes.Internal, "other"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			recorder, observer := &memoryRecorder{}, &callLog{}
			s := testService(recorder, displayGPU("A"))
			s.config.Observer = observer
			s.config.Inject = func(ctx context.Context, resource string, ids []string) (*v1beta1.ContainerAllocateResponse, error) {
				if len(recorder.live) == 1 {
					return &v1beta1.ContainerAllocateResponse{}, nil
				}
				return nil, test.err
			}
			_, err := s.Allocate(t.Context(), &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{
				{DevicesIds: []string{"A::0"}}, {DevicesIds: []string{"A::1"}},
			}})
			if status.Code(err) != test.code || !strings.Contains(err.Error(), test.err.Error()) {
				t.Error(err)
			}
			if len(recorder.live) != 0 || len(recorder.discarded) != 2 {
				t.Errorf("%d records are left", len(recorder.live))
			}
			if diff := cmp.Diff([]string{"failed " + ResourceDisplay + ": " + test.reason}, observer.all()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestObserver(t *testing.T) {
	t.Parallel()
	observer := &callLog{}
	s := testService(&memoryRecorder{}, displayGPU("A"))
	s.config.Observer = observer
	allocate := func(id string) {
		_, _ = s.Allocate(t.Context(), &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: []string{id}}}})
	}
	start := func(err error) {
		s.config.Ready = func(context.Context, Start) error { return err }
		_, _ = s.PreStartContainer(t.Context(), &v1beta1.PreStartContainerRequest{DevicesIds: []string{"A::0"}})
	}
	allocate("A::0")
	allocate("B::0")
	start(nil)
	start(errors.New("no plugin"))
	want := []string{
		"allocated " + ResourceDisplay, "failed " + ResourceDisplay + ": invalid_request",
		"checked " + ResourceDisplay + ": true", "checked " + ResourceDisplay + ": false",
	}
	if diff := cmp.Diff(want, observer.all()); diff != "" {
		t.Error(diff)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	a := displayGPU("A")
	a.LocationPath = "PCIROOT(0)#PCI(1B00)"
	unhealthy := displayGPU("B")
	unhealthy.Health.Reason = "it stopped"
	r := run(t, testConfig(t, dir, newSource(a, unhealthy, discovery.Device{InstanceID: "N"})))
	if err := r.Registered(); err == nil {
		t.Error("registered without a kubelet")
	}
	k := startKubelet(t, dir)
	k.await(ResourceDisplay, "A::0 A::1 B::0! B::1!")
	eventually(t, "registration", func() bool { return r.Registered() == nil })
	want := Status{
		Devices: []DeviceStatus{{discovery.KindDisplay, true}, {discovery.KindDisplay, false}, {discovery.KindNone, true}},
		Resources: []ResourceStatus{
			{Name: ResourceCompute, Registered: true},
			{Name: ResourceDisplay, Registered: true, GPUs: []GPUStatus{
				{InstanceID: "A", LocationPath: a.LocationPath, Healthy: true, Replicas: 2}, {InstanceID: "B", Replicas: 2},
			}},
		},
	}
	if diff := cmp.Diff(want, r.Status()); diff != "" {
		t.Error(diff)
	}
	k.stop()
	eventually(t, "the end of it", func() bool { return r.Registered() != nil })
	if err := r.Alive(); err != nil {
		t.Error(err)
	}
}

func TestAlive(t *testing.T) {
	t.Parallel()
	now := time.Now()
	a := &Advertiser{now: func() time.Time { return now }, status: newStatusTracker()}
	a.status.setLook(now.Add(-maxSilence))
	if err := a.Alive(); err != nil {
		t.Error(err)
	}
	a.status.setLook(now.Add(-maxSilence - time.Second))
	if err := a.Alive(); err == nil || !strings.Contains(err.Error(), "hangs") {
		t.Error(err)
	}
}

func containersOf(name string, containers ...*podresources.ContainerResources) *podresources.PodResources {
	return &podresources.PodResources{Namespace: "team", Name: name, Containers: containers}
}

func containerWith(name string, ids ...string) *podresources.ContainerResources {
	return &podresources.ContainerResources{Name: name, Devices: []*podresources.ContainerDevices{
		{ResourceName: "other/thing", DeviceIds: []string{"x"}}, {ResourceName: ResourceDisplay, DeviceIds: ids},
	}}
}

// TestAttribution binds injected records to the containers that the kubelet names.
func TestAttribution(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	recorder, err := allocation.OpenRecorder(t.Context(), filepath.Join(t.TempDir(), "allocations"), testutil.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer recorder.Close()
	lister := &podLister{list: &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{
		// The kubelet's order is its own, and each NUMA node has an entry.
		containersOf("web", &podresources.ContainerResources{Name: "main", Devices: []*podresources.ContainerDevices{
			{ResourceName: ResourceDisplay, DeviceIds: []string{"A::1"}}, {ResourceName: ResourceDisplay, DeviceIds: []string{"A::0"}},
		}}),
		containersOf("job", containerWith("side"), containerWith("main", "B::0")),
	}}}
	k := startKubelet(t, dir)
	config := testConfig(t, dir, newSource(displayGPU("A"), displayGPU("B")))
	config.Recorder, config.Inject, config.Pods = recorder, injectDevices, NewPodTracker(PodResources{lister.serve(t)})
	run(t, config)
	if _, err := k.client(ResourceDisplay).Allocate(t.Context(), allocateRequest([]string{"A::0", "A::1"}, []string{"B::0"}, []string{"B::1"})); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"A::0": "team/web/main", "B::0": "team/job/main", "B::1": ""}
	eventually(t, "holders", func() bool {
		got := map[string]string{}
		for _, r := range recorder.Live() {
			got[r.Replicas[0].ID] = ""
			if r.Holder != nil {
				got[r.Replicas[0].ID] = r.Holder.PodNamespace + "/" + r.Holder.PodName + "/" + r.Holder.Container
			}
		}
		return cmp.Equal(want, got)
	})
}

func TestSoleHolder(t *testing.T) {
	t.Parallel()
	record := allocation.LiveRecord{Record: allocation.Record{Resource: ResourceDisplay, Replicas: []allocation.Replica{{ID: "A::0"}, {ID: "A::1"}}}}
	container := func(ids ...string) ContainerDevices {
		return ContainerDevices{Replicas: map[string][]string{ResourceDisplay: ids, "other/thing": {"x"}}}
	}
	for name, test := range map[string]struct {
		containers []ContainerDevices
		want       bool
	}{
		"it":              {[]ContainerDevices{container("A::1", "A::0")}, true},
		"none":            {nil, false},
		"some of them":    {[]ContainerDevices{container("A::0")}, false},
		"more than these": {[]ContainerDevices{container("A::0", "A::1", "A::2")}, false},
		"two":             {[]ContainerDevices{container("A::0", "A::1"), container("A::0", "A::1")}, false},
	} {
		if _, got := soleHolder(test.containers, record); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestPodResourcesHeld(t *testing.T) {
	t.Parallel()
	lister := &podLister{list: &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{
		containersOf("a", containerWith("main", "A::0")), containersOf("b", containerWith("main", "A::1", "B::0")),
	}}}
	got, err := PodResources{lister.serve(t)}.Held(t.Context())
	want := map[string][]string{ResourceDisplay: {"A::0", "A::1", "B::0"}, "other/thing": {"x", "x"}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if _, err := (PodResources{"/nowhere/s"}).Held(t.Context()); err == nil {
		t.Error("no error")
	}
}

func TestPodResourcesTogether(t *testing.T) {
	t.Parallel()
	second := containerWith("main", "A::0")
	second.Devices = append(second.Devices, &podresources.ContainerDevices{ResourceName: ResourceCompute, DeviceIds: []string{"C::0"}})
	lister := &podLister{list: &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{
		containersOf("a", second, containerWith("side", "A::1")), containersOf("b", containerWith("main", "A::2"), containerWith("twice", "A::2")),
	}}}
	kubelet := PodResources{lister.serve(t)}
	for replica, want := range map[string]map[string][]string{
		"A::0": {"other/thing": {"x"}, ResourceDisplay: {"A::0"}, ResourceCompute: {"C::0"}},
		"A::1": {"other/thing": {"x"}, ResourceDisplay: {"A::1"}},
		"A::2": nil,
		"A::3": nil,
	} {
		got, err := kubelet.Together(t.Context(), Start{Resource: ResourceDisplay, ReplicaIDs: []string{replica}})
		if diff := cmp.Diff(want, got); diff != "" || errors.Is(err, ErrNoHolder) != (want == nil) {
			t.Errorf("%s: %v %s", replica, err, diff)
		}
	}
}
