package deviceplugin

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// t0 is when the tests begin; at(n) is n seconds later.
var t0 = time.Date(2025, 6, 1, 12, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return t0.Add(time.Duration(seconds) * time.Second) }

func displayGPU(id string) discovery.Device {
	return discovery.Device{
		InstanceID: id, SupportsDisplay: true, SupportsCompute: true, VendorID: pci.VendorNVIDIA, DriverVersion: "1",
		DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg", ContainerPath: "/dev/dxg"}},
	}
}

func emptyPool(rule policy.ResourceRule) *pool {
	return &pool{resource: displayResource, rule: rule, list: &v1beta1.ListAndWatchResponse{}}
}

func poolOf(replicas int, devices ...discovery.Device) *pool {
	return emptyPool(mixing).next(newGPUs(replicas, devices...), nil)
}

// mixing is the rule of the tests that are about something else.
var mixing = policy.ResourceRule{AllocationPolicy: policy.Distributed, MixedDrivers: policy.AllowMixed}

func newGPUs(replicas int, devices ...discovery.Device) (gpus []gpu) {
	for _, d := range devices {
		gpus = append(gpus, newGPU(d, replicas))
	}
	return gpus
}

// held is a record of replicas, written as for idOf.
func held(resource string, replicas ...string) allocation.Entry {
	record := allocation.Record{Resource: resource}
	for _, replica := range replicas {
		gpu, _, _ := strings.Cut(replica, "-")
		record.Replicas = append(record.Replicas, allocation.Replica{ID: idOf(replica), InstanceID: gpu})
	}
	return allocation.Entry{Record: record}
}

// bound is record as a container of pod "default/NAME-OF-UID" has presented it.
func bound(uid string, record allocation.Entry) allocation.Entry {
	record.Holder = &allocation.Holder{PodUID: uid, Container: "main", PodNamespace: "default", PodName: "name-of-" + uid}
	return record
}

// describe returns the GPUs of p, each with a character for each replica in the list: "+" if it can be
// allocated, "-" if it cannot.
func describe(p *pool) string {
	var words []string
	for _, g := range p.gpus {
		word := named(g.key)
		for number := range g.listed {
			if g.offers(number) {
				word += "+"
			} else {
				word += "-"
			}
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func TestPoolNext(t *testing.T) {
	t.Parallel()
	a, b, c := displayGPU("A"), displayGPU("B"), displayGPU("C")
	unhealthy, onNode, newDriver := b, a, a
	unhealthy.Health.Reason = "driver stopped (code 43)"
	onNode.NUMANode = new(int)
	newDriver.DriverVersion = "2"
	type step struct {
		devices []discovery.Device
		others  []discovery.Device // with another resource
		held    []allocation.Entry
		listed  []string // replicas of a container that the kubelet lists
		want    string
		quiet   bool // the kubelet gets no new list
	}
	for name, steps := range map[string][]step{
		"comes and stays": {
			{devices: []discovery.Device{a, b}, want: "A++ B++"},
			{devices: []discovery.Device{a, b}, want: "A++ B++", quiet: true},
			{devices: []discovery.Device{a, b, c}, want: "A++ B++ C++"},
		},
		"nothing at all": {{want: "", quiet: true}},
		"fails and recovers": {
			{devices: []discovery.Device{a, unhealthy}, want: "A++ B--"},
			{devices: []discovery.Device{a, b}, want: "A++ B++"},
		},
		"the list only grows": {
			{devices: []discovery.Device{a, unhealthy}, want: "A++ B--"},
			{devices: []discovery.Device{a}, want: "A++ B--", quiet: true},
			{devices: []discovery.Device{c}, want: "C++ A-- B--"},
			{devices: []discovery.Device{b, a}, want: "B++ A++ C--"},
		},
		"a change that the kubelet does not see": {
			{devices: []discovery.Device{a}, want: "A++"},
			{devices: []discovery.Device{newDriver}, want: "A++", quiet: true},
			{devices: []discovery.Device{onNode}, want: "A++"},
		},
		"one GPU in several spellings": {
			{devices: []discovery.Device{displayGPU("a"), b, displayGPU("A")}, want: "A++ B++"},
			{held: []allocation.Entry{held(displayResource, "a-0")}, want: "A-- B--"},
		},
		"records of GPUs that are gone": {
			{devices: []discovery.Device{b}, held: []allocation.Entry{held(displayResource, "Z-1", "A-0"), held(computeResource, "M-0")}, want: "B++ A- Z--"},
		},
		"a record of more replicas than there are now": {
			{devices: []discovery.Device{a}, held: []allocation.Entry{held(displayResource, "A-3")}, want: "A++-+"},
			{devices: []discovery.Device{a}, want: "A++--"},
		},
		"without records, what the kubelet lists": {
			{devices: []discovery.Device{a}, listed: []string{"A-2", "Z-0", "foreign"}, want: "A+++ Z-"},
		},
		"a GPU that has another resource name now keeps what is held": {
			{devices: []discovery.Device{a, b}, held: []allocation.Entry{held(displayResource, "A-1")}, want: "A++ B++"},
			{others: []discovery.Device{b, a}, held: []allocation.Entry{held(displayResource, "A-1")}, want: "B-- A-+"},
			{others: []discovery.Device{b, a, c}, want: "B-- A--"},
		},
		"a GPU with another resource name offers what is free": {
			{devices: []discovery.Device{a}, held: []allocation.Entry{held("old", "A-1"), held("old", "B-0")}, want: "A+-"},
			{devices: []discovery.Device{a}, want: "A++"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := emptyPool(mixing)
			for i, step := range steps {
				containers := []containerDevices{{replicaIDs: map[string][]string{displayResource: idsOf(step.listed)}}}
				next := p.next(slices.Concat(newGPUs(2, step.devices...), newGPUs(0, step.others...)), newHoldings(step.held, containers))
				if got := describe(next); got != step.want {
					t.Fatalf("step %d: got %q, want %q", i, got, step.want)
				}
				if changed := !proto.Equal(next.list, p.list); changed == step.quiet {
					t.Errorf("step %d: there is a new list: %v", i, changed)
				}
				p = next
			}
		})
	}
}

func TestPoolValidate(t *testing.T) {
	t.Parallel()
	const uuid = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
	one, limited := policy.ResourceRule{AllocationPolicy: policy.Distributed}, policy.ResourceRule{AllocationPolicy: policy.Distributed, MaxPerContainer: 1}
	replica := func(gpu string, number int, uuid string) allocation.Replica {
		return allocation.Replica{ID: idOf(fmt.Sprintf("%s-%d", gpu, number)), InstanceID: gpu, UUID: uuid}
	}
	for _, test := range []struct {
		name     string
		rule     policy.ResourceRule // mixing, if empty
		replicas []string
		want     []allocation.Replica
		wantErr  string
	}{
		// UUIDs are recorded, because the source that a container's start uses does not look them up.
		{name: "one", replicas: []string{"A-3"}, want: []allocation.Replica{replica("A", 3, uuid)}},
		{name: "several, in the kubelet's order", replicas: []string{"B-0", "E-0", "B-2"},
			want: []allocation.Replica{replica("B", 0, ""), replica("E", 0, ""), replica("B", 2, "")}},
		{name: "none", wantErr: "without replicas"},
		{name: "no number", replicas: []string{"A-0", ""}, wantErr: `"" cannot be allocated`},
		{name: "unknown GPU", replicas: []string{"A-0", "X-0"}, wantErr: idOf("X-0")},
		{name: "number too high", replicas: []string{"A-4"}, wantErr: "GPU A has 4 replicas"},
		{name: "held as another resource", replicas: []string{"B-3"}, wantErr: "held as another resource"},
		{name: "fault", replicas: []string{"F-0"}, wantErr: "GPU F is unhealthy (driver stopped (code 43))"},
		{name: "missing", replicas: []string{"G-0"}, wantErr: "not available on this node"},
		// The kubelet does not call GetPreferredAllocation before each Allocate.
		{name: "one driver", rule: one, replicas: []string{"A-0", "B-0"}, want: []allocation.Replica{replica("A", 0, uuid), replica("B", 0, "")}},
		{name: "mixed drivers", rule: one, replicas: []string{"A-0", "E-0"}, wantErr: "A (NVIDIA, driver 1), E (NVIDIA, driver unknown); request"},
		{name: "too many", rule: limited, replicas: []string{"A-0", "A-1"}, wantErr: "raise maxPerContainer"},
	} {
		a, e, unhealthy := displayGPU("A"), displayGPU("E"), displayGPU("F")
		a.UUID, e.DriverVersion, unhealthy.Health.Reason = uuid, "", "driver stopped (code 43)"
		if test.rule.AllocationPolicy == "" {
			test.rule = mixing
		}
		p := emptyPool(test.rule).next(newGPUs(4, a, displayGPU("B"), e, unhealthy),
			newHoldings([]allocation.Entry{held(displayResource, "G-0"), held("old", "B-3")}, nil))
		got, err := p.validate(idsOf(test.replicas))
		checkRefused(t, test.name, err, test.wantErr)
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

func TestPoolList(t *testing.T) {
	t.Parallel()
	zero, far := displayGPU("A"), displayGPU("B")
	zero.NUMANode, far.NUMANode = new(int), new(int)
	*far.NUMANode = 300
	p := emptyPool(mixing).next(newGPUs(1, zero, far), newHoldings([]allocation.Entry{held(displayResource, "B-1", "Z-0")}, nil))
	node := func(n int64) *v1beta1.TopologyInfo {
		return &v1beta1.TopologyInfo{Nodes: []*v1beta1.NUMANode{{ID: n}}}
	}
	want := []*v1beta1.Device{
		{ID: idOf("A-0"), Health: v1beta1.Healthy, Topology: node(0)},
		{ID: idOf("B-0"), Health: v1beta1.Healthy, Topology: node(300)}, {ID: idOf("B-1"), Health: v1beta1.Healthy, Topology: node(300)},
		{ID: idOf("Z-0"), Health: v1beta1.Unhealthy},
	}
	if diff := cmp.Diff(want, p.list.GetDevices(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

// TestListSize: with as many replicas as the schema permits, the kubelet accepts 4 MiB, gRPC's default (plugin/v1beta1/client.go in
// pkg/kubelet/cm/devicemanager, v1.34).
func TestListSize(t *testing.T) {
	t.Parallel()
	var devices []discovery.Device
	for i := range 64 {
		d := displayGPU(fmt.Sprintf(`PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\4&1CFCA9AB&0&%04X`, i))
		d.NUMANode, d.Health.Reason = &i, "unhealthy is the longer word"
		devices = append(devices, d)
	}
	if n := proto.Size(poolOf(1024, devices...).list); n > 4<<20 {
		t.Errorf("the list has %d bytes", n)
	}
}
