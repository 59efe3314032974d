package advertiser

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"directx-nri/discovery"
)

// gpuSpec writes a device as "ID driver [node]".
func gpuSpec(spec string) discovery.Device {
	d := discovery.Device{SupportsDisplay: true, VendorID: discovery.VendorNVIDIA}
	node := -1
	if n, _ := fmt.Sscan(spec, &d.InstanceID, &d.DriverVersion, &node); n == 3 {
		d.NUMANode = &node
	}
	return d
}

// free returns the IDs of the n highest-numbered of a GPU's replicas, written
// as "ID n".
func free(t *testing.T, replicas int, specs ...string) (ids []string) {
	t.Helper()
	for _, spec := range specs {
		var id string
		var n int
		if _, err := fmt.Sscan(spec, &id, &n); err != nil {
			t.Fatal(err)
		}
		for number := replicas - n; number < replicas; number++ {
			ids = append(ids, replicaID(id, number))
		}
	}
	return ids
}

func TestPrefer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		gpus      []string
		available []string // as for free
		more      []string // further available IDs, as they are
		must      []string
		size      int
		want      string // the IDs, of 4 replicas each
		wantErr   string
	}{
		{name: "one from two idle: source order", gpus: []string{"B d", "A d"}, available: []string{"A 4", "B 4"}, size: 1, want: "B::0"},
		{name: "one: fewest in use", gpus: []string{"A d", "B d", "C d"}, available: []string{"A 2", "B 3", "C 1"}, size: 1, want: "B::1"},
		{name: "one: fewest in use whatever the driver", gpus: []string{"A d", "B e"}, available: []string{"A 3", "B 4"}, size: 1, want: "B::0"},
		{name: "one: full GPUs are skipped", gpus: []string{"A d", "B d"}, available: []string{"B 1"}, size: 1, want: "B::3"},
		{name: "none", gpus: []string{"A d"}, available: []string{"A 4"}, size: 0, want: ""},

		{name: "two different GPUs though one is busier", gpus: []string{"A d", "B d"}, available: []string{"A 4", "B 1"}, size: 2, want: "A::0 B::3"},
		{name: "two of three: fewest in use", gpus: []string{"A d", "B d", "C d"}, available: []string{"A 1", "B 3", "C 2"}, size: 2, want: "B::1 C::2"},
		{name: "more than there are GPUs: fewest in use after one of each", gpus: []string{"A d", "B d"}, available: []string{"A 4", "B 2"}, size: 4, want: "A::0 A::1 A::2 B::2"},
		{name: "everything", gpus: []string{"A d", "B e"}, available: []string{"A 2", "B 1"}, size: 3, want: "A::2 A::3 B::3"},

		{name: "one driver before different GPUs", gpus: []string{"A d", "B e"}, available: []string{"A 3", "B 4"}, size: 2, want: "B::0 B::1"},
		{name: "the driver with more GPUs, though busier", gpus: []string{"A d", "B e", "C e"}, available: []string{"A 4", "B 1", "C 1"}, size: 2, want: "B::3 C::3"},
		{name: "of drivers with as many GPUs, the less busy", gpus: []string{"A d", "B d", "C e", "D e"}, available: []string{"A 3", "B 4", "C 4", "D 4"}, size: 2, want: "C::0 D::0"},
		{name: "of drivers alike, the first", gpus: []string{"A d", "B e", "C d", "D e"}, available: []string{"A 4", "B 4", "C 4", "D 4"}, size: 2, want: "A::0 C::0"},
		{name: "a driver that has too few is not begun with", gpus: []string{"A d", "B d", "C e"}, available: []string{"A 1", "B 1", "C 4"}, size: 3, want: "C::0 C::1 C::2"},
		{name: "drivers are mixed when none has enough", gpus: []string{"A d", "B e"}, available: []string{"A 2", "B 2"}, size: 3, want: "A::2 A::3 B::2"},

		{name: "must include is first and decides the driver", gpus: []string{"A d", "B e", "C e"}, available: []string{"A 4", "B 2", "C 1"}, must: []string{"C::3"}, size: 2, want: "C::3 B::2"},
		{name: "must include counts as its GPU's one", gpus: []string{"A d", "B d", "C d"}, available: []string{"A 4", "B 3", "C 2"}, must: []string{"A::2"}, size: 3, want: "A::2 B::1 C::2"},
		{name: "must include all", gpus: []string{"A d", "B d"}, available: []string{"A 4", "B 4"}, must: []string{"B::3", "A::1"}, size: 2, want: "B::3 A::1"},
		{name: "must include that mixes drivers stays with both", gpus: []string{"A d", "B e", "C f"}, available: []string{"A 1", "B 3", "C 4"}, must: []string{"A::3", "B::3"}, size: 3, want: "A::3 B::3 B::1"},
		{name: "must include whose driver has too few", gpus: []string{"A d", "B e", "C e"}, available: []string{"A 1", "B 4", "C 4"}, must: []string{"A::3"}, size: 3, want: "A::3 B::0 C::0"},
		{name: "must include beside the available ones", gpus: []string{"A d", "B d"}, available: []string{"B 1"}, must: []string{"A::0"}, size: 2, want: "A::0 B::3"},

		{name: "one NUMA node that has enough", gpus: []string{"A d 0", "B d 1", "C d 1"}, available: []string{"A 4", "B 4", "C 4"}, size: 2, want: "B::0 C::0"},
		{name: "fewest in use before one NUMA node", gpus: []string{"A d 0", "B d 1", "C d 1"}, available: []string{"A 4", "B 4", "C 3"}, size: 2, want: "A::0 B::0"},
		{name: "the NUMA node of the less busy one", gpus: []string{"A d 0", "B d 1", "C d 1"}, available: []string{"A 3", "B 4", "C 3"}, size: 2, want: "B::0 C::1"},
		{name: "the NUMA node of must include", gpus: []string{"A d 0", "B d 1", "C d 1"}, available: []string{"A 4", "B 4", "C 4"}, must: []string{"C::0"}, size: 2, want: "C::0 B::0"},
		{name: "the NUMA node with most when none has enough", gpus: []string{"A d 0", "B d 1", "C d 2", "D d 1"}, available: []string{"A 4", "B 4", "C 4", "D 4"}, size: 3, want: "A::0 B::0 D::0"},
		{name: "known NUMA nodes before unknown ones", gpus: []string{"A d", "B d", "C d 0"}, available: []string{"A 4", "B 4", "C 4"}, size: 2, want: "A::0 C::0"},
		{name: "a driver on one NUMA node before one on two", gpus: []string{"A d 0", "B d 1", "C e 1", "D e 1"}, available: []string{"A 4", "B 4", "C 4", "D 4"}, size: 2, want: "C::0 D::0"},

		{name: "unknown available ones are skipped", gpus: []string{"A d"}, available: []string{"A 1"}, more: []string{"X::0", "A::4", "A", ""}, size: 1, want: "A::3"},
		{name: "named twice is available once", gpus: []string{"A d", "B d"}, available: []string{"A 1", "A 1", "B 2"}, size: 1, want: "B::2"},
		{name: "unknown must include", gpus: []string{"A d"}, available: []string{"A 4"}, must: []string{"X::0"}, size: 1, wantErr: `"X::0"`},
		{name: "must include twice", gpus: []string{"A d"}, available: []string{"A 4"}, must: []string{"A::0", "A::0"}, size: 2, wantErr: "must be included twice"},
		{name: "less than must include", gpus: []string{"A d"}, available: []string{"A 4"}, must: []string{"A::0", "A::1"}, size: 1, wantErr: "must be included"},
		{name: "more than available", gpus: []string{"A d"}, available: []string{"A 2"}, more: []string{"X::0"}, size: 3, wantErr: "3 replicas of directx.microsoft.com/display requested and 2 available"},
		{name: "negative", gpus: []string{"A d"}, available: []string{"A 2"}, size: -1, wantErr: "-1 replicas"},
		{name: "no GPU", size: 1, wantErr: "0 available"},
		{name: "no GPU, none wanted", size: 0, want: ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var devices []discovery.Device
			for _, spec := range test.gpus {
				devices = append(devices, gpuSpec(spec))
			}
			p := poolOf(4, devices...)
			got, err := p.prefer(append(free(t, 4, test.available...), test.more...), test.must, test.size)
			if test.wantErr != "" {
				if !errors.Is(err, ErrInvalidRequest) || !strings.Contains(err.Error(), test.wantErr) {
					t.Errorf("error %v, want one with %q", err, test.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPreferSkipsFaults(t *testing.T) {
	t.Parallel()
	unhealthy := gpuSpec("A d")
	unhealthy.Health.Reason = "driver stopped"
	p := poolOf(4, unhealthy, gpuSpec("B d"))
	got, err := p.prefer(free(t, 4, "A 4", "B 2"), nil, 2)
	if err != nil || strings.Join(got, " ") != "B::2 B::3" {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := p.prefer(free(t, 4, "A 4", "B 2"), nil, 3); !errors.Is(err, ErrInvalidRequest) {
		t.Errorf("a GPU with a fault was counted: %v", err)
	}
}

// TestPreferProperties checks for random requests what must hold for every one.
func TestPreferProperties(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 1))
		replicas := 1 + random.IntN(70)
		var devices []discovery.Device
		for i := range 1 + random.IntN(6) {
			spec := fmt.Sprintf("G%d d%d", i, random.IntN(3))
			if random.IntN(3) > 0 {
				spec += fmt.Sprintf(" %d", random.IntN(2))
			}
			devices = append(devices, gpuSpec(spec))
		}
		p := poolOf(replicas, devices...)
		var available, must []string
		for _, d := range devices {
			chance := random.Float64()
			for n := range replicas {
				if random.Float64() > chance {
					continue
				}
				available = append(available, replicaID(d.InstanceID, n))
			}
		}
		random.Shuffle(len(available), func(i, j int) { available[i], available[j] = available[j], available[i] })
		if len(available) == 0 {
			continue
		}
		size := 1 + random.IntN(min(len(available), 12))
		if random.IntN(2) == 0 {
			must = available[:random.IntN(size+1)]
		}
		if problem := checkPreferred(p, available, must, size, random); problem != "" {
			t.Fatalf("seed %d: %d GPUs of %d replicas, %d available, %d of %v: %s", seed, len(devices), replicas, len(available), size, must, problem)
		}
	}
}

func checkPreferred(p *pool, available, must []string, size int, random *rand.Rand) string {
	got, err := p.prefer(available, must, size)
	if err != nil {
		return err.Error()
	}
	again := slices.Clone(available)
	random.Shuffle(len(again), func(i, j int) { again[i], again[j] = again[j], again[i] })
	if other, _ := p.prefer(again, must, size); !slices.Equal(got, other) {
		return fmt.Sprintf("it depends on the order of the available ones: %v or %v", got, other)
	}
	if len(got) != size {
		return fmt.Sprintf("%d chosen: %v", len(got), got)
	}
	if !slices.Equal(got[:len(must)], must) {
		return fmt.Sprintf("must-include is not first in %v", got)
	}
	seen := map[string]bool{}
	taken := map[string]int{}
	for _, id := range got {
		if seen[id] || !slices.Contains(available, id) {
			return fmt.Sprintf("%s is chosen twice or not available", id)
		}
		seen[id] = true
		instance, _, _ := ParseReplicaID(id)
		taken[instance]++
	}
	open := map[string]int{}
	byDriver := map[driver]int{}
	for _, id := range available {
		i, _, _ := p.find(id)
		open[p.gpus[i].instanceID]++
		byDriver[p.gpus[i].driver]++
	}
	chosenDrivers := map[driver]bool{}
	for _, g := range p.gpus {
		if taken[g.instanceID] > 0 {
			chosenDrivers[g.driver] = true
		}
	}
	if len(must) == 0 && len(chosenDrivers) > 1 {
		for d, n := range byDriver {
			if n >= size {
				return fmt.Sprintf("drivers are mixed although %v has enough: %v", d, got)
			}
		}
	}
	mustOf := map[string]int{}
	for _, id := range must {
		instance, _, _ := ParseReplicaID(id)
		mustOf[instance]++
	}
	load := func(g gpu) int { return g.replicas - open[g.instanceID] }
	for _, from := range p.gpus {
		chosen := taken[from.instanceID] - mustOf[from.instanceID]
		if chosen == 0 {
			continue
		}
		for _, to := range p.gpus {
			if to.instanceID == from.instanceID || !chosenDrivers[to.driver] || open[to.instanceID] == taken[to.instanceID] {
				continue
			}
			switch {
			case taken[from.instanceID] > 1 && taken[to.instanceID] == 0:
				return fmt.Sprintf("%s gives %d and %s none: %v", from.instanceID, taken[from.instanceID], to.instanceID, got)
			case taken[from.instanceID] == 1 && taken[to.instanceID] == 0 && load(to) < load(from):
				return fmt.Sprintf("%s is used although %s is less busy: %v", from.instanceID, to.instanceID, got)
			case taken[from.instanceID] > 1 && load(to)+taken[to.instanceID] < load(from)+taken[from.instanceID]-1:
				return fmt.Sprintf("a replica of %s could better come from %s: %v", from.instanceID, to.instanceID, got)
			}
		}
	}
	return ""
}

func BenchmarkPrefer(b *testing.B) {
	for _, size := range []struct{ gpus, replicas int }{{2, 4}, {64, 256}} {
		b.Run(fmt.Sprintf("%dx%d", size.gpus, size.replicas), func(b *testing.B) {
			p, ids := bigPool(size.gpus, size.replicas)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.prefer(ids, nil, 2); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// bigPool returns a pool of GPUs with instance IDs of the usual length, and
// all its replica IDs in no order.
func bigPool(gpus, replicas int) (*pool, []string) {
	devices := bigNode(gpus)
	var ids []string
	for _, d := range devices {
		for n := range replicas {
			ids = append(ids, replicaID(d.InstanceID, n))
		}
	}
	random := rand.New(rand.NewPCG(1, 1))
	random.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	return poolOf(replicas, devices...), ids
}

func bigNode(gpus int) []discovery.Device {
	devices := make([]discovery.Device, gpus)
	for i := range devices {
		node := i % 2
		devices[i] = displayGPU(fmt.Sprintf(`PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\4&1CFCA9AB&0&%04X`, i))
		devices[i].NUMANode = &node
	}
	return devices
}
