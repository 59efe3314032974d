package advertiser

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"directx-nri/discovery"
	"directx-nri/internal/allocation"
)

// t0 is when the tests begin; at(n) is n seconds later.
var t0 = time.Date(2025, 6, 1, 12, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return t0.Add(time.Duration(seconds) * time.Second) }

func displayGPU(id string) discovery.Device {
	return discovery.Device{InstanceID: id, SupportsDisplay: true, SupportsCompute: true, VendorID: discovery.VendorNVIDIA, DriverVersion: "1"}
}

func poolOf(replicas int, devices ...discovery.Device) *pool {
	return newPool(ResourceDisplay, replicas, nil, t0).merge(devices, t0)
}

// offered describes p in short: "A" for a usable GPU, "A!" for one with a
// fault, "A?" for one that is missing, "A+n" with n replicas beyond the offer.
func offered(p *pool) string {
	var words []string
	for _, g := range p.gpus {
		word := g.instanceID
		switch {
		case g.missing():
			word += "?"
		case !g.usable():
			word += "!"
		}
		if g.listed != p.replicas {
			word += fmt.Sprintf("%+d", g.listed-p.replicas)
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func TestReplicaID(t *testing.T) {
	t.Parallel()
	const pnp = `PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\4&1CFCA9AB&0&00D8`
	for _, test := range []struct {
		id       string
		instance string
		number   int
		ok       bool
	}{
		{id: pnp + "::0", instance: pnp, number: 0, ok: true},
		{id: pnp + "::1023", instance: pnp, number: 1023, ok: true},
		{id: "a::b::7", instance: "a::b", number: 7, ok: true},
		{id: ":::5", instance: ":", number: 5, ok: true},
		{id: ""},
		{id: "::"},
		{id: pnp},
		{id: pnp + "::"},
		{id: pnp + "::-1"},
		{id: pnp + "::+1"},
		{id: pnp + "::01"},
		{id: pnp + "::00"},
		{id: pnp + "::1 "},
		{id: pnp + "::0x1"},
		{id: pnp + "::١"},
		{id: pnp + "::18446744073709551616"},
	} {
		t.Run(test.id, func(t *testing.T) {
			t.Parallel()
			instance, number, ok := parseReplicaID(test.id)
			if instance != test.instance || number != test.number || ok != test.ok {
				t.Fatalf("got %q, %d, %v", instance, number, ok)
			}
			if ok && replicaID(instance, number) != test.id {
				t.Errorf("made again it is %q", replicaID(instance, number))
			}
		})
	}
}

func TestMergeAndPrune(t *testing.T) {
	t.Parallel()
	a, b, c := displayGPU("A"), displayGPU("B"), displayGPU("C")
	sick := b.Clone()
	sick.Health.Reason = "driver stopped (code 43)"
	node := 1
	onNode := a.Clone()
	onNode.NUMANode = &node
	newDriver := a.Clone()
	newDriver.DriverVersion = "2"

	type action struct {
		at    int
		merge []discovery.Device
		// held is for a prune.
		held  map[string]int
		want  string
		quiet bool // the kubelet is not told
	}
	for _, test := range []struct {
		name  string
		live  []allocation.Record
		steps []action
	}{
		{name: "comes and stays", steps: []action{
			{merge: []discovery.Device{a, b}, want: "A B"},
			{merge: []discovery.Device{a, b}, want: "A B", quiet: true},
			{merge: []discovery.Device{a, b, c}, want: "A B C"},
		}},
		{name: "nothing at all", steps: []action{{merge: nil, want: "", quiet: true}}},
		{name: "fails and recovers", steps: []action{
			{merge: []discovery.Device{a, b}, want: "A B"},
			{merge: []discovery.Device{a, sick}, want: "A B!"},
			{merge: []discovery.Device{a, b}, want: "A B"},
		}},
		{name: "what the kubelet does not hear of", steps: []action{
			{merge: []discovery.Device{a}, want: "A"},
			{merge: []discovery.Device{newDriver}, want: "A", quiet: true},
			{merge: []discovery.Device{onNode}, want: "A"},
			{merge: []discovery.Device{a}, want: "A"},
		}},
		{name: "order of the source", steps: []action{
			{merge: []discovery.Device{b, a}, want: "B A"},
			{merge: []discovery.Device{a, b}, want: "A B"},
			{merge: []discovery.Device{c}, want: "C A? B?"},
		}},
		{name: "vanishes unheld", steps: []action{
			{merge: []discovery.Device{a, b}, want: "A B"},
			{at: 1, merge: []discovery.Device{a}, want: "A B?"},
			{at: 1, held: map[string]int{}, want: "A B?", quiet: true},
			{at: 20, held: map[string]int{}, want: "A B?", quiet: true},
			{at: 21, held: map[string]int{}, want: "A"},
		}},
		{name: "vanishes held", steps: []action{
			{merge: []discovery.Device{a}, want: "A"},
			{at: 1, merge: nil, want: "A?"},
			{at: 100, held: map[string]int{"A": 1}, want: "A?", quiet: true},
			{at: 200, held: map[string]int{}, want: "A?", quiet: true},
			{at: 210, held: map[string]int{"A": 1}, want: "A?", quiet: true},
			{at: 220, held: map[string]int{}, want: "A?", quiet: true},
			{at: 239, held: map[string]int{}, want: "A?", quiet: true},
			{at: 240, held: map[string]int{}, want: ""},
		}},
		{name: "vanishes and returns", steps: []action{
			{merge: []discovery.Device{a, b}, want: "A B"},
			{at: 1, merge: []discovery.Device{b}, want: "B A?"},
			{at: 1, held: map[string]int{}, want: "B A?", quiet: true},
			{at: 2, merge: []discovery.Device{a, b}, want: "A B"},
			{at: 50, held: map[string]int{}, want: "A B", quiet: true},
			{at: 60, merge: []discovery.Device{b}, want: "B A?"},
			{at: 60, held: map[string]int{}, want: "B A?", quiet: true},
		}},
		{
			name: "known from records after a restart",
			live: []allocation.Record{
				{Resource: ResourceDisplay, Replicas: []allocation.Replica{{ID: "Z::1", InstanceID: "Z"}, {ID: "A::0", InstanceID: "A"}}},
				{Resource: ResourceCompute, Replicas: []allocation.Replica{{ID: "M::0", InstanceID: "M"}}},
			},
			steps: []action{
				{merge: []discovery.Device{b, a}, want: "B A Z?"},
				{held: map[string]int{"Z": 2}, want: "B A Z?", quiet: true},
			},
		},
		{
			name: "number of replicas lowered while a high one is held",
			live: []allocation.Record{
				{Resource: ResourceDisplay, Replicas: []allocation.Replica{{ID: "A::9", InstanceID: "A"}}},
				{Resource: ResourceDisplay, Replicas: []allocation.Replica{{ID: "A::2", InstanceID: "A"}}},
			},
			steps: []action{
				{merge: []discovery.Device{a, b}, want: "A+6 B"},
				{held: map[string]int{"A": 10}, want: "A+6 B", quiet: true},
				{at: 1, held: map[string]int{"A": 3}, want: "A+6 B", quiet: true},
				{at: 21, held: map[string]int{"A": 3}, want: "A B"},
			},
		},
		{
			name: "a record of a number that was never possible",
			live: []allocation.Record{{Resource: ResourceDisplay, Replicas: []allocation.Replica{{ID: "A::9999", InstanceID: "A"}}}},
			steps: []action{
				{merge: []discovery.Device{a}, want: "A+1020"},
				{held: map[string]int{"A": 10000}, want: "A+1020", quiet: true},
			},
		},
		{name: "what cannot be offered", steps: []action{
			{merge: []discovery.Device{a, a, displayGPU(""), displayGPU("\xff"), b}, want: "A B"},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := newPool(ResourceDisplay, 4, test.live, t0)
			for i, step := range test.steps {
				next := p
				if step.held != nil {
					next = p.prune(step.held, at(step.at), 20*time.Second)
				} else {
					next = p.merge(step.merge, at(step.at))
				}
				if got := offered(next); got != step.want {
					t.Fatalf("step %d: got %q, want %q", i, got, step.want)
				}
				if told := next.generation != p.generation; told == step.quiet {
					t.Errorf("step %d: the kubelet is told: %v", i, told)
				}
				p = next
			}
		})
	}
}

func TestLeftovers(t *testing.T) {
	t.Parallel()
	p := poolOf(4, displayGPU("A"))
	if p.leftovers() {
		t.Error("a GPU that is there is left over")
	}
	if !p.merge(nil, t0).leftovers() {
		t.Error("a missing GPU is not left over")
	}
	live := []allocation.Record{{Resource: ResourceDisplay, Replicas: []allocation.Replica{{ID: "A::4", InstanceID: "A"}}}}
	if !newPool(ResourceDisplay, 4, live, t0).merge([]discovery.Device{displayGPU("A")}, t0).leftovers() {
		t.Error("a replica beyond the offer is not left over")
	}
}

func TestHeldReplicas(t *testing.T) {
	t.Parallel()
	live := []allocation.Record{
		{Resource: ResourceDisplay, Replicas: []allocation.Replica{{ID: "A::0", InstanceID: "A"}, {ID: "B::3", InstanceID: "B"}}},
		{Resource: ResourceDisplay, Replicas: []allocation.Replica{{ID: "B::1", InstanceID: "B"}}},
		{Resource: ResourceCompute, Replicas: []allocation.Replica{{ID: "C::0", InstanceID: "C"}}},
	}
	for _, test := range []struct {
		name    string
		holders map[string]bool
		want    map[string]int
	}{
		{name: "the kubelet cannot be asked", want: map[string]int{"A": 1, "B": 4}},
		{name: "the kubelet denies all", holders: map[string]bool{}, want: map[string]int{}},
		{name: "the kubelet confirms some", holders: map[string]bool{"B::1": true, "C::0": true, "D::0": true}, want: map[string]int{"B": 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, heldReplicas(live, ResourceDisplay, test.holders)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	sick := displayGPU("SICK")
	sick.Health.Reason = "driver stopped (code 43)"
	p := poolOf(4, displayGPU("A"), displayGPU("B"), displayGPU("GONE"), sick).
		merge([]discovery.Device{displayGPU("A"), displayGPU("B"), sick}, t0)
	for _, test := range []struct {
		name    string
		ids     []string
		want    []allocation.Replica
		wantErr string // beside the offending ID
	}{
		{name: "one", ids: []string{"A::3"}, want: []allocation.Replica{{ID: "A::3", InstanceID: "A"}}},
		{name: "several, in the kubelet's order", ids: []string{"B::0", "A::0", "B::2"}, want: []allocation.Replica{
			{ID: "B::0", InstanceID: "B"}, {ID: "A::0", InstanceID: "A"}, {ID: "B::2", InstanceID: "B"}}},
		{name: "none", ids: nil, wantErr: "names no replica"},
		{name: "empty ID", ids: []string{"A::0", ""}, wantErr: `"" is not a replica ID`},
		{name: "no number", ids: []string{"A"}, wantErr: `"A" is not a replica ID`},
		{name: "unknown GPU", ids: []string{"A::0", "X::0"}, wantErr: `"X::0"`},
		{name: "other spelling", ids: []string{"a::0"}, wantErr: `"a::0"`},
		{name: "number too high", ids: []string{"A::4"}, wantErr: `"A::4" is beyond the 4 replicas`},
		{name: "fault", ids: []string{"SICK::0"}, wantErr: `"SICK::0" cannot be allocated, for its GPU SICK has a fault (driver stopped (code 43))`},
		{name: "missing", ids: []string{"GONE::0"}, wantErr: `(it is no longer found)`},
		{name: "twice", ids: []string{"A::0", "B::0", "A::0"}, wantErr: `"A::0" is named twice`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := p.validate(test.ids)
			if test.wantErr != "" {
				if !errors.Is(err, ErrInvalidRequest) || !strings.Contains(err.Error(), test.wantErr) {
					t.Errorf("error %v, want one with %q", err, test.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
