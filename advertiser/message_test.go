package advertiser

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"directx-nri/discovery"
	"directx-nri/internal/allocation"
)

// received returns the message for p as the kubelet decodes it.
func received(t *testing.T, p *pool) *v1beta1.ListAndWatchResponse {
	t.Helper()
	response, err := p.response()
	if err != nil {
		t.Fatal(err)
	}
	data, err := proto.Marshal(response)
	if err != nil {
		t.Fatal(err)
	}
	if size, err := p.size(); err != nil || len(data) > size {
		t.Errorf("the message has %d bytes, expected were at most %d (error %v)", len(data), size, err)
	}
	decoded := &v1beta1.ListAndWatchResponse{}
	if err := proto.Unmarshal(data, decoded); err != nil {
		t.Fatal(err)
	}
	return decoded
}

func TestResponse(t *testing.T) {
	t.Parallel()
	onNode := func(n int) discovery.Device {
		d := displayGPU("A")
		d.NUMANode = &n
		return d
	}
	sick := displayGPU("S")
	sick.Health.Reason = "driver stopped"
	topology := func(n int64) *v1beta1.TopologyInfo {
		return &v1beta1.TopologyInfo{Nodes: []*v1beta1.NUMANode{{ID: n}}}
	}
	lowered := newPool(ResourceDisplay, 1, []allocation.LiveRecord{held(ResourceDisplay, "A::2")}, t0).
		shared(1, []discovery.Device{displayGPU("A")})
	for _, test := range []struct {
		name string
		pool *pool
		want []*v1beta1.Device
	}{
		{name: "no GPU", pool: poolOf(2)},
		{name: "NUMA node not known", pool: poolOf(2, displayGPU("A")), want: []*v1beta1.Device{
			{ID: "A::0", Health: v1beta1.Healthy}, {ID: "A::1", Health: v1beta1.Healthy}}},
		{name: "NUMA node 0", pool: poolOf(1, onNode(0)), want: []*v1beta1.Device{{ID: "A::0", Health: v1beta1.Healthy, Topology: topology(0)}}},
		{name: "NUMA node 300", pool: poolOf(1, onNode(300)), want: []*v1beta1.Device{{ID: "A::0", Health: v1beta1.Healthy, Topology: topology(300)}}},
		{name: "fault", pool: poolOf(1, sick, displayGPU("B")), want: []*v1beta1.Device{
			{ID: "S::0", Health: v1beta1.Unhealthy}, {ID: "B::0", Health: v1beta1.Healthy}}},
		{name: "missing", pool: poolOf(1, onNode(1)).merge(nil, t0), want: []*v1beta1.Device{{ID: "A::0", Health: v1beta1.Unhealthy, Topology: topology(1)}}},
		{name: "beyond the offer", pool: lowered, want: []*v1beta1.Device{
			{ID: "A::0", Health: v1beta1.Healthy}, {ID: "A::1", Health: v1beta1.Unhealthy}, {ID: "A::2", Health: v1beta1.Unhealthy}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, received(t, test.pool).GetDevices(), protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestResponseOfALargeNode(t *testing.T) {
	t.Parallel()
	p, ids := bigPool(64, 256)
	devices := received(t, p).GetDevices()
	if len(devices) != len(ids) {
		t.Fatalf("%d devices, want %d", len(devices), len(ids))
	}
	if first, last := devices[0].GetID(), devices[len(devices)-1].GetID(); first != replicaID(p.gpus[0].instanceID, 0) || last != replicaID(p.gpus[63].instanceID, 255) {
		t.Errorf("from %s to %s", first, last)
	}
}

func TestSizeRefusesWhatTheKubeletWouldNotTake(t *testing.T) {
	t.Parallel()
	p, _ := bigPool(64, 1024)
	_, err := p.size()
	if err == nil || !strings.Contains(err.Error(), "lower --replicas to ") {
		t.Fatalf("error %v does not say what to do", err)
	}
	var lower int
	if _, after, ok := strings.Cut(err.Error(), "lower --replicas to "); ok {
		for _, c := range after {
			lower = 10*lower + int(c-'0')
		}
	}
	p, _ = bigPool(64, lower)
	if _, err := p.size(); err != nil {
		t.Errorf("the advice was no good: %v", err)
	}
	if lower < 400 {
		t.Errorf("%d replicas are far fewer than what fits", lower)
	}
}
