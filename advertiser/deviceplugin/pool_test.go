package deviceplugin

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
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

// testDelay is the removal delay of the tests' pools.
const testDelay = 20 * time.Second

func emptyPool(rule policy.ResourceRule) *pool { return &pool{resource: displayResource, rule: rule} }

func poolOf(replicas int, devices ...discovery.Device) *pool {
	return emptyPool(mixing).next(gpusOf(replicas, devices...), nil, t0, testDelay)
}

func heldBy(records ...allocation.Entry) map[string]heldReplicas {
	return heldByGPU(records, displayResource)
}

// mixing is the rule of the tests that are about something else.
var mixing = policy.ResourceRule{AllocationPolicy: policy.Distributed, MixedDrivers: policy.AllowMixed}

func gpusOf(replicas int, devices ...discovery.Device) (gpus []gpu) {
	for _, d := range devices {
		gpus = append(gpus, newGPU(d, replicas))
	}
	return gpus
}

// held is a record of replicas, given by their IDs.
func held(resource string, ids ...string) allocation.Entry {
	record := allocation.Record{Resource: resource}
	for _, id := range ids {
		instanceID, _, _ := allocation.ParseReplicaID(id)
		record.Replicas = append(record.Replicas, allocation.Replica{ID: id, InstanceID: instanceID})
	}
	return allocation.Entry{Record: record}
}

// bound is record as a container of pod "default/NAME-OF-UID" has presented it.
func bound(uid string, record allocation.Entry) allocation.Entry {
	record.Holder = &allocation.Holder{PodUID: uid, Container: "main", PodNamespace: "default", PodName: "name-of-" + uid}
	return record
}

// describe returns the GPUs of p: "A" if it is usable, "A!" with a fault, "A?" if it is missing, and
// "A+n" if n more than 4 replicas are listed.
func describe(p *pool) string {
	var words []string
	for _, g := range p.gpus {
		word := g.instanceID
		switch {
		case g.fault == faultMissing:
			word += "?"
		case !g.usable():
			word += "!"
		}
		if n := len(g.listed()); n != 4 {
			word += fmt.Sprintf("%+d", n-4)
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func TestPoolNext(t *testing.T) {
	t.Parallel()
	a, b, c := displayGPU("A"), displayGPU("B"), displayGPU("C")
	unhealthy := b
	unhealthy.Health.Reason = "driver stopped (code 43)"
	node := 1
	onNode := a
	onNode.NUMANode = &node
	newDriver := a
	newDriver.DriverVersion = "2"

	type step struct {
		at      int
		devices []discovery.Device
		held    map[string]int
		want    string
		quiet   bool // the kubelet gets no new list
	}
	for _, test := range []struct {
		name    string
		records []allocation.Entry
		steps   []step
	}{
		{name: "comes and stays", steps: []step{
			{devices: []discovery.Device{a, b}, want: "A B"},
			{devices: []discovery.Device{a, b}, want: "A B", quiet: true},
			{devices: []discovery.Device{a, b, c}, want: "A B C"},
		}},
		{name: "nothing at all", steps: []step{{devices: nil, want: "", quiet: true}}},
		{name: "fails and recovers", steps: []step{
			{devices: []discovery.Device{a, b}, want: "A B"},
			{devices: []discovery.Device{a, unhealthy}, want: "A B!"},
			{devices: []discovery.Device{a, b}, want: "A B"},
		}},
		{name: "fails and vanishes", steps: []step{
			{devices: []discovery.Device{a, unhealthy}, want: "A B!"},
			{devices: []discovery.Device{a}, want: "A B?", quiet: true},
		}},
		{name: "what the kubelet does not hear of", steps: []step{
			{devices: []discovery.Device{a}, want: "A"},
			{devices: []discovery.Device{newDriver}, want: "A", quiet: true},
			{devices: []discovery.Device{onNode}, want: "A"},
			{devices: []discovery.Device{a}, want: "A"},
		}},
		{name: "order of the source", steps: []step{
			{devices: []discovery.Device{b, a}, want: "B A"},
			{devices: []discovery.Device{a, b}, want: "A B"},
			{devices: []discovery.Device{c}, want: "C A? B?"},
		}},
		{name: "vanishes unheld", steps: []step{
			{devices: []discovery.Device{a, b}, want: "A B"},
			{at: 1, devices: []discovery.Device{a}, want: "A B?"},
			{at: 20, devices: []discovery.Device{a}, want: "A B?", quiet: true},
			{at: 21, devices: []discovery.Device{a}, want: "A"},
		}},
		{name: "vanishes held", steps: []step{
			{devices: []discovery.Device{a}, want: "A"},
			{at: 1, held: map[string]int{"A": 1}, want: "A?"},
			{at: 100, held: map[string]int{"A": 1}, want: "A?-3"},
			{at: 200, want: "A?-3", quiet: true},
			{at: 210, held: map[string]int{"A": 1}, want: "A?-3", quiet: true},
			{at: 220, want: "A?-3", quiet: true},
			{at: 239, want: "A?-3", quiet: true},
			{at: 240, want: ""},
		}},
		{name: "vanishes, returns and vanishes", steps: []step{
			{devices: []discovery.Device{a, b}, want: "A B"},
			{at: 1, devices: []discovery.Device{b}, want: "B A?"},
			{at: 2, devices: []discovery.Device{a, b}, want: "A B"},
			{at: 60, devices: []discovery.Device{b}, want: "B A?"},
			{at: 79, devices: []discovery.Device{b}, want: "B A?", quiet: true},
			{at: 80, devices: []discovery.Device{b}, want: "B"},
		}},
		{name: "comes in another spelling", steps: []step{
			{devices: []discovery.Device{displayGPU("Pci-a"), b}, want: "Pci-a B"},
			{devices: []discovery.Device{b, displayGPU("PCI-A"), displayGPU("pci-a")}, want: "B Pci-a"},
			{held: map[string]int{"PCI-A": 1}, want: "B? Pci-a?"},
			{devices: []discovery.Device{displayGPU("pCI-A")}, held: map[string]int{"PCI-A": 1}, want: "Pci-a B?"},
			{at: 30, held: map[string]int{"PCI-A": 1}, want: "Pci-a?"},
		}},
		{
			name:    "known from records in another spelling",
			records: []allocation.Entry{held(displayResource, "Pci-a::1"), held(displayResource, "PCI-A::5")},
			steps: []step{
				{devices: []discovery.Device{displayGPU("PCI-A"), b}, held: map[string]int{"PCI-A": 6}, want: "Pci-a+1 B"},
			},
		},
		{
			name:    "known from records after a restart",
			records: []allocation.Entry{held(displayResource, "Z::1", "A::0"), held(computeResource, "M::0")},
			steps: []step{
				{devices: []discovery.Device{b, a}, held: map[string]int{"Z": 2}, want: "B A Z?-3"},
			},
		},
		{
			name:    "number of replicas lowered while a high one is held",
			records: []allocation.Entry{held(displayResource, "A::9", "A::8"), held(displayResource, "A::2")},
			steps: []step{
				{devices: []discovery.Device{a, b}, held: map[string]int{"A": 10}, want: "A+2 B"},
				{at: 1, devices: []discovery.Device{a, b}, held: map[string]int{"A": 3}, want: "A+2 B", quiet: true},
				{at: 19, devices: []discovery.Device{a, b}, held: map[string]int{"A": 3}, want: "A+2 B", quiet: true},
				{at: 20, devices: []discovery.Device{a, b}, held: map[string]int{"A": 3}, want: "A+1 B"},
				{at: 21, devices: []discovery.Device{a, b}, held: map[string]int{"A": 3}, want: "A B"},
			},
		},
		{
			name:    "vanishes when its high replicas have been free for a while",
			records: []allocation.Entry{held(displayResource, "A::9")},
			steps: []step{
				{devices: []discovery.Device{a}, held: map[string]int{"A": 3}, want: "A+1"},
				{at: 20, want: "A?"},
				{at: 39, want: "A?", quiet: true},
				{at: 40, want: ""},
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := emptyPool(mixing).next(nil, heldBy(test.records...), t0, testDelay)
			for i, step := range test.steps {
				held := map[string]heldReplicas{}
				for id, n := range step.held {
					held[id] = heldReplicas{id, []int{n - 1}}
				}
				next := p.next(gpusOf(4, step.devices...), held, at(step.at), testDelay)
				if got := describe(next); got != step.want {
					t.Fatalf("step %d: got %q, want %q", i, got, step.want)
				}
				if changed := !next.sameList(p); changed == step.quiet {
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
	for _, test := range []struct {
		name    string
		rule    policy.ResourceRule // mixing, if empty
		ids     []string
		want    []allocation.Replica
		wantErr string
	}{
		// UUIDs are recorded, because the source that a container's start uses does not look them up.
		{name: "one", ids: []string{"A::3"}, want: []allocation.Replica{{ID: "A::3", InstanceID: "A", UUID: uuid}}},
		{name: "several, in the kubelet's order", ids: []string{"B::0", "E::0", "B::2"}, want: []allocation.Replica{
			{ID: "B::0", InstanceID: "B"}, {ID: "E::0", InstanceID: "E"}, {ID: "B::2", InstanceID: "B"}}},
		{name: "none", ids: nil, wantErr: "without replicas"},
		{name: "empty ID", ids: []string{"A::0", ""}, wantErr: `"" is not a replica of`},
		{name: "no number", ids: []string{"A"}, wantErr: `"A" is not a replica of`},
		{name: "unknown GPU", ids: []string{"A::0", "X::0"}, wantErr: `"X::0"`},
		{name: "other spelling", ids: []string{"a::0"}, wantErr: `"a::0"`},
		{name: "number too high", ids: []string{"A::4"}, wantErr: `"A::4" is beyond the 4 replicas`},
		{name: "fault", ids: []string{"FAULTY::0"}, wantErr: `"FAULTY::0" cannot be allocated: GPU FAULTY is unhealthy (driver stopped (code 43))`},
		{name: "missing", ids: []string{"GONE::0"}, wantErr: "advertised as another resource"},
		{name: "twice", ids: []string{"A::0", "B::0", "A::0"}, wantErr: `"A::0" is requested twice`},
		// The kubelet does not call GetPreferredAllocation before each Allocate.
		{name: "one driver", rule: one, ids: []string{"A::0", "B::0"}, want: []allocation.Replica{{ID: "A::0", InstanceID: "A", UUID: uuid}, {ID: "B::0", InstanceID: "B"}}},
		{name: "mixed drivers", rule: one, ids: []string{"A::0", "E::0"}, wantErr: "A (NVIDIA, driver 1), E (NVIDIA, driver unknown); request"},
		{name: "too many", rule: limited, ids: []string{"A::0", "A::1"}, wantErr: "raise maxPerContainer"},
	} {
		a, e, unhealthy := displayGPU("A"), displayGPU("E"), displayGPU("FAULTY")
		a.UUID, e.DriverVersion, unhealthy.Health.Reason = uuid, "", "driver stopped (code 43)"
		now := gpusOf(4, a, displayGPU("B"), e, unhealthy)
		if test.rule.AllocationPolicy == "" {
			test.rule = mixing
		}
		p := emptyPool(test.rule).next(append(now, gpusOf(4, displayGPU("GONE"))...), nil, t0, testDelay).next(now, nil, t0, testDelay)
		got, err := p.validate(test.ids)
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
	stopped := displayGPU("S")
	stopped.Health.Reason = "driver stopped"
	p := emptyPool(mixing).next(append(gpusOf(1, zero, far, stopped), gpusOf(2, displayGPU("C"))...), heldBy(held(displayResource, "B::1", "B::0", "Z::0")), t0, testDelay)
	node := func(n int64) *v1beta1.TopologyInfo {
		return &v1beta1.TopologyInfo{Nodes: []*v1beta1.NUMANode{{ID: n}}}
	}
	want := []*v1beta1.Device{
		{ID: "A::0", Health: v1beta1.Healthy, Topology: node(0)},
		{ID: "B::0", Health: v1beta1.Healthy, Topology: node(300)}, {ID: "B::1", Health: v1beta1.Unhealthy, Topology: node(300)},
		{ID: "S::0", Health: v1beta1.Unhealthy},
		{ID: "C::0", Health: v1beta1.Healthy}, {ID: "C::1", Health: v1beta1.Healthy},
		{ID: "Z::0", Health: v1beta1.Unhealthy},
	}
	if diff := cmp.Diff(want, p.list().GetDevices(), protocmp.Transform()); diff != "" {
		t.Error(diff)
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
	testutil.NoError(t, p.checkSize())
}
