package advertiser

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"directx-nri/discovery"
)

func TestList(t *testing.T) {
	t.Parallel()
	onNode := func(n int) discovery.Device {
		d := displayGPU("A")
		d.NUMANode = &n
		return d
	}
	unhealthy := displayGPU("S")
	unhealthy.Health.Reason = "driver stopped"
	topology := func(n int64) *v1beta1.TopologyInfo {
		return &v1beta1.TopologyInfo{Nodes: []*v1beta1.NUMANode{{ID: n}}}
	}
	lowered := emptyPool(mixing).next(sharesOf(1, displayGPU("A")), heldBy(held(ResourceDisplay, "A::2")), t0, testPatience)
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
		{name: "fault", pool: poolOf(1, unhealthy, displayGPU("B")), want: []*v1beta1.Device{
			{ID: "S::0", Health: v1beta1.Unhealthy}, {ID: "B::0", Health: v1beta1.Healthy}}},
		{name: "missing", pool: poolOf(1, onNode(1)).merge(nil, t0), want: []*v1beta1.Device{{ID: "A::0", Health: v1beta1.Unhealthy, Topology: topology(1)}}},
		{name: "replicas lowered", pool: lowered, want: []*v1beta1.Device{
			{ID: "A::0", Health: v1beta1.Healthy}, {ID: "A::1", Health: v1beta1.Unhealthy}, {ID: "A::2", Health: v1beta1.Unhealthy}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, test.pool.list().GetDevices(), protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCheckSize(t *testing.T) {
	t.Parallel()
	p, _ := bigPool(64, 1024)
	err := p.checkSize()
	if err == nil || !strings.Contains(err.Error(), "lower replicas in the configuration to ") {
		t.Fatalf("error %v has no remedy", err)
	}
	_, number, _ := strings.Cut(err.Error(), "configuration to ")
	lower, err := strconv.Atoi(number)
	if err != nil || lower < 400 {
		t.Fatalf("the remedy is %d replicas, %v", lower, err)
	}
	p, _ = bigPool(64, lower)
	if err := p.checkSize(); err != nil {
		t.Errorf("with the remedy: %v", err)
	}
}
