package deviceplugin

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// answerWithDevices answers with one device for each replica.
func answerWithDevices(_ context.Context, _ string, replicas []allocation.Replica) (*v1beta1.ContainerAllocateResponse, error) {
	answer := &v1beta1.ContainerAllocateResponse{}
	for _, r := range replicas {
		answer.Devices = append(answer.Devices, &v1beta1.DeviceSpec{HostPath: "/dev/" + r.ID, ContainerPath: "/dev/" + r.ID})
	}
	return answer, nil
}

// TestAllocate allocates to two containers over the socket, with records and by kubelet injection, which has
// none.
func TestAllocate(t *testing.T) {
	t.Parallel()
	want := [][]allocation.Replica{
		{{ID: idOf("A-0"), InstanceID: "A"}, {ID: idOf("A-1"), InstanceID: "A"}, {ID: idOf("B-0"), InstanceID: "B"}},
		{{ID: idOf("B-1"), InstanceID: "B"}},
	}
	for name, injects := range map[string]bool{"records": false, "kubelet injection": true} {
		k := newBed(t, displayGPU("A"), displayGPU("B"))
		if injects {
			k.config.Inject = answerWithDevices
		}
		k.run()
		answer, err := k.client(displayResource).Allocate(t.Context(), allocateRequest([]string{"A-0", "A-1", "B-0"}, []string{"B-1"}))
		records := k.config.Recorder.Refresh()
		if err != nil || injects && len(records) > 0 || !injects && len(records) != len(want) {
			t.Fatalf("%s: records %+v, %v", name, records, err)
		}
		for i, got := range answer.GetContainerResponses() {
			if injects {
				want, _ := answerWithDevices(t.Context(), "", want[i])
				if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
					t.Errorf("%s: answer (-want +got):\n%s", name, diff)
				}
				continue
			}
			if diff := cmp.Diff(want[i], records[i].Replicas); diff != "" || records[i].Resource != displayResource {
				t.Errorf("record %d of %s (-want +got):\n%s", i, records[i].Resource, diff)
			}
			if id := got.GetAnnotations()["directx.microsoft.com/allocation.display"]; id != string(records[i].ID) {
				t.Errorf("ID %q, want %q", id, records[i].ID)
			}
		}
	}
}

// TestNoListDuringAllocation: while an allocation is in flight, a list of the kubelet's pods
// would free its replicas.
func TestNoListDuringAllocation(t *testing.T) {
	t.Parallel()
	k := newBed(t, displayGPU("A"))
	entered, leave := make(chan struct{}), make(chan struct{})
	var lists atomic.Int32
	k.config.Pods = &PodTracker{now: time.Now, list: func(context.Context) ([]containerDevices, error) { lists.Add(1); return nil, nil }}
	k.config.Inject = func(context.Context, string, []allocation.Replica) (*v1beta1.ContainerAllocateResponse, error) {
		close(entered)
		<-leave
		return &v1beta1.ContainerAllocateResponse{}, nil
	}
	k.run()
	client := k.client(displayResource)
	k.await(displayResource, "A-0 A-1")
	ended := make(chan error, 1)
	go func() {
		_, err := client.Allocate(t.Context(), allocateRequest([]string{"A-0"}))
		ended <- err
	}()
	<-entered
	k.source.awaitRefreshes(t) // The last one may have begun before the allocation.
	lists.Store(0)
	k.source.awaitRefreshes(t)
	if n := lists.Load(); n > 0 {
		t.Errorf("%d lists during the allocation", n)
	}
	close(leave)
	testutil.Eventually(t, "a list after the allocation", func() bool { return lists.Load() > 0 })
	testutil.NoError(t, <-ended)
}

func TestReport(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	a := displayGPU("A")
	a.LocationPath = "PCIROOT(0)#PCI(1B00)"
	unhealthy := displayGPU("B")
	unhealthy.Health.Reason = "it stopped"
	config := testConfig(t, dir, newSource(a, unhealthy, discovery.Device{InstanceID: "N"}))
	config.Pods.list = func(context.Context) ([]containerDevices, error) {
		return []containerDevices{{replicaIDs: map[string][]string{displayResource: {idOf("A-0")}, "other/thing": {"x"}}}}, nil
	}
	r := run(t, config)
	if err := r.CheckReady(t.Context()); err == nil {
		t.Error("registered without a kubelet")
	}
	k := startKubelet(t, dir)
	k.await(displayResource, "A-0 A-1 B-0! B-1!")
	testutil.Eventually(t, "registration", func() bool { return r.CheckReady(t.Context()) == nil })
	r.config.Metrics.CollectNode(r.Report)
	page := ""
	testutil.Eventually(t, "the container in the metrics", func() bool {
		page = scrape(r.config.Metrics)
		return strings.Contains(page, `PCI(1B00)",resource="directx.microsoft.com/display"} 1`)
	})
	for _, want := range []string{
		`devices{health="healthy",kind="compute"} 0`, `devices{health="healthy",kind="display"} 1`, `devices{health="unhealthy",kind="display"} 1`, `devices{health="healthy",kind="none"} 1`,
		`replicas{gpu="PCIROOT(0)#PCI(1B00)",resource="directx.microsoft.com/display"} 2`, `replicas{gpu="B",resource="directx.microsoft.com/display"} 2`,
		`replicas_in_use{gpu="PCIROOT(0)#PCI(1B00)",resource="directx.microsoft.com/display"} 1`, `replicas_in_use{gpu="B",resource="directx.microsoft.com/display"} 0`,
		`resource_registered{resource="directx.microsoft.com/compute"} 1`, `resource_registered{resource="directx.microsoft.com/display"} 1`,
	} {
		if !strings.Contains(page, "\ndirectx_"+want+"\n") {
			t.Errorf("%s is missing in\n%s", want, page)
		}
	}
	k.Stop()
	testutil.Eventually(t, "the end of it", func() bool { return r.CheckReady(t.Context()) != nil })
	testutil.NoError(t, r.CheckAlive())
}

func TestCheckAlive(t *testing.T) {
	t.Parallel()
	a := &Plugin{listingBegan: time.Now().Add(time.Minute - maxSilence)}
	testutil.NoError(t, a.CheckAlive())
	a.listingBegan = time.Now().Add(-maxSilence)
	testutil.CheckError(t, "no list for long", a.CheckAlive(), "not been listed")
}

// TestInjectionBeginsWithWhatIsHeld: without records, the kubelet's first lists have what its containers hold.
func TestInjectionBeginsWithWhatIsHeld(t *testing.T) {
	t.Parallel()
	const old = "example.com/old"
	k := newBed(t, displayGPU("A"))
	k.config.Inject = answerWithDevices
	k.config.Pods = &PodTracker{now: time.Now, list: func(context.Context) ([]containerDevices, error) {
		held := map[string][]string{old: {idOf("A-1")}, displayResource: {idOf("B-0")}, "nvidia.com/gpu": {"GPU-0"}, "example.com/x": {"x-0"}}
		return []containerDevices{{replicaIDs: held}}, nil
	}}
	p := newPlugin(t.Context(), k.config, fastTiming())
	p.refresh(t.Context())
	want := map[string]map[string]string{
		displayResource: {idOf("A-0"): v1beta1.Healthy, idOf("A-1"): v1beta1.Unhealthy, idOf("B-0"): v1beta1.Unhealthy},
		computeResource: {},
		old:             {idOf("A-0"): v1beta1.Unhealthy, idOf("A-1"): v1beta1.Healthy},
	}
	got := map[string]map[string]string{}
	for name, s := range p.servers {
		got[name] = map[string]string{}
		pool, _ := s.current()
		for _, d := range pool.list.GetDevices() {
			got[name][d.GetID()] = d.GetHealth()
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lists (-want +got):\n%s", diff)
	}
}
