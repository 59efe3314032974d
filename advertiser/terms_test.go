package advertiser

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"directx-nri/internal/policy"
)

// sharedPool returns a pool of GPUs written as "ID driver [node]*replicas".
func sharedPool(t *testing.T, on terms, specs ...string) *pool {
	t.Helper()
	var shares []share
	for _, spec := range specs {
		device, replicas, _ := strings.Cut(spec, "*")
		s := share{device: gpuSpec(device)}
		if _, err := fmt.Sscan(replicas, &s.replicas); err != nil {
			t.Fatal(err)
		}
		shares = append(shares, s)
	}
	return emptyPool(on).next(shares, nil, t0, testPatience)
}

// freeOf returns the IDs of the n highest-numbered replicas of GPUs of p, written
// as "ID n".
func freeOf(t *testing.T, p *pool, specs ...string) (ids []string) {
	t.Helper()
	for _, spec := range specs {
		id, _, _ := strings.Cut(spec, " ")
		ids = append(ids, free(t, p.gpus[p.index[id]].replicas, spec)...)
	}
	return ids
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	packed := terms{policy: policy.Packed, mixed: true}
	distributed := terms{policy: policy.Distributed, mixed: true}
	one := terms{policy: policy.Distributed}
	limited := terms{policy: policy.Distributed, maxPerContainer: 2}
	for _, test := range []struct {
		name      string
		on        terms
		gpus      []string
		available []string
		must      []string
		size      int
		want      string
		wantErr   string
	}{
		{name: "packed, one: most in use", on: packed, gpus: []string{"A d*4", "B d*4", "C d*4"}, available: []string{"A 4", "B 1", "C 2"}, size: 1, want: "B::3"},
		{name: "packed, one: a full GPU has none", on: packed, gpus: []string{"A d*4", "B d*4"}, available: []string{"A 4"}, size: 1, want: "A::0"},
		{name: "packed, one of idle GPUs: source order", on: packed, gpus: []string{"B d*4", "A d*4"}, available: []string{"A 4", "B 4"}, size: 1, want: "B::0"},
		{name: "packed, two: different GPUs, those most in use", on: packed, gpus: []string{"A d*4", "B d*4", "C d*4"}, available: []string{"A 4", "B 1", "C 2"}, size: 2, want: "B::3 C::2"},
		{name: "packed, more than there are GPUs: the rest from the most used", on: packed, gpus: []string{"A d*4", "B d*4"}, available: []string{"A 3", "B 4"}, size: 4, want: "A::1 A::2 A::3 B::0"},
		{name: "packed, must include", on: packed, gpus: []string{"A d*4", "B d*4", "C d*4"}, available: []string{"A 4", "B 4", "C 3"}, must: []string{"A::0"}, size: 2, want: "A::0 C::1"},
		{name: "packed: the busier of two drivers", on: packed, gpus: []string{"A d*4", "B e*4"}, available: []string{"A 4", "B 3"}, size: 1, want: "B::1"},
		{name: "packed: of GPUs alike, those of one NUMA node", on: packed, gpus: []string{"A d 0*4", "B d 1*4", "C d 1*4"}, available: []string{"A 3", "B 3", "C 3"}, size: 2, want: "B::1 C::1"},

		{name: "different replicas: fewest in use, counted", on: distributed, gpus: []string{"A d*8", "B d*2"}, available: []string{"A 6", "B 1"}, size: 1, want: "B::1"},
		{name: "different replicas: a full small GPU gives none", on: distributed, gpus: []string{"A d*1", "B d*8"}, available: []string{"B 5"}, size: 2, want: "B::3 B::4"},
		{name: "different replicas: packed passes a full one over", on: packed, gpus: []string{"A d*8", "B d*2"}, available: []string{"A 7"}, size: 2, want: "A::1 A::2"},
		{name: "different replicas: each has its own numbers", on: distributed, gpus: []string{"A d*1", "B d*3"}, available: []string{"A 1", "B 3"}, size: 4, want: "A::0 B::0 B::1 B::2"},

		{name: "one driver has enough", on: one, gpus: []string{"A d*2", "B e*2"}, available: []string{"A 1", "B 2"}, size: 2, want: "B::0 B::1"},
		{name: "no driver has enough", on: one, gpus: []string{"A d*2", "B e*2", "C f*2"}, available: []string{"A 1", "B 1"}, size: 2, wantErr: "A (NVIDIA, driver d), B (NVIDIA, driver e). Request fewer, wait for GPUs of one driver, or set mixedDrivers: allow"},
		{name: "must include mixes drivers", on: one, gpus: []string{"A d*2", "B e*2"}, available: []string{"A 2", "B 2"}, must: []string{"A::0", "B::0"}, size: 2, wantErr: "mixedDrivers"},
		{name: "must include's driver has too few", on: one, gpus: []string{"A d*2", "B e*4"}, available: []string{"A 2", "B 4"}, must: []string{"A::0"}, size: 3, wantErr: "mixedDrivers"},

		{name: "as many as one container may have", on: limited, gpus: []string{"A d*4"}, available: []string{"A 4"}, size: 2, want: "A::0 A::1"},
		{name: "more than one container may have", on: limited, gpus: []string{"A d*4"}, available: []string{"A 4"}, size: 3, wantErr: "requests 3 of directx.microsoft.com/display and the limit of this node is 2: request fewer, or raise maxPerContainer"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := sharedPool(t, test.on, test.gpus...)
			got, err := p.prefer(freeOf(t, p, test.available...), test.must, test.size)
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

// TestValidateByPolicy: the kubelet does not always ask what it should allocate.
func TestValidateByPolicy(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		on      terms
		gpus    []string
		ids     []string
		wantErr string
	}{
		{name: "mixed drivers allowed", on: terms{mixed: true}, gpus: []string{"A d*2", "B e*2"}, ids: []string{"A::0", "B::0"}},
		{name: "mixed drivers", gpus: []string{"A d*2", "B e*2", "C f*2"}, ids: []string{"A::0", "B::0"}, wantErr: "A (NVIDIA, driver d), B (NVIDIA, driver e). Request"},
		{name: "an unknown driver version is one of its own", gpus: []string{"A d*2", "B *2"}, ids: []string{"A::0", "B::0"}, wantErr: "B (NVIDIA, driver unknown)"},
		{name: "as many as may be", on: terms{maxPerContainer: 2}, gpus: []string{"A d*4"}, ids: []string{"A::0", "A::1"}},
		{name: "too many", on: terms{maxPerContainer: 1}, gpus: []string{"A d*4"}, ids: []string{"A::0", "A::1"}, wantErr: "raise maxPerContainer"},
		{name: "beyond its own GPU's replicas", on: terms{}, gpus: []string{"A d*2", "B d*4"}, ids: []string{"A::2"}, wantErr: "beyond the 2 replicas"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := sharedPool(t, test.on, test.gpus...).validate(test.ids)
			if test.wantErr == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, ErrInvalidRequest) || !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("error %v, want one with %q", err, test.wantErr)
			}
		})
	}
}

// TestPreferredIsValid, for random pools and terms; and where a
// request is refused, no choice of the GPUs would do.
func TestPreferredIsValid(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 3))
		on := terms{policy: pick(random, []policy.AllocationPolicy{policy.Distributed, policy.Packed}), mixed: random.IntN(3) == 0}
		if random.IntN(4) == 0 {
			on.maxPerContainer = 1 + random.IntN(4)
		}
		var specs, available []string
		for i := range 1 + random.IntN(4) {
			replicas := 1 + random.IntN(4)
			specs = append(specs, fmt.Sprintf("G%d d%d*%d", i, random.IntN(2), replicas))
			chance := random.Float64()
			for n := range replicas {
				if random.Float64() < chance {
					available = append(available, replicaID(fmt.Sprintf("G%d", i), n))
				}
			}
		}
		if len(available) == 0 {
			continue
		}
		p := sharedPool(t, on, specs...)
		size := 1 + random.IntN(min(len(available), 5))
		must := slices.Clone(available[:random.IntN(min(size, 2)+1)])
		random.Shuffle(len(available), func(i, j int) { available[i], available[j] = available[j], available[i] })
		got, err := p.prefer(available, must, size)
		if err == nil {
			_, err = p.validate(got)
			if err != nil || len(got) != size || len(must) > 0 && !slices.Equal(got[:len(must)], must) {
				t.Fatalf("seed %d: %v of %v, terms %+v: preferred are %v: %v", seed, size, specs, on, got, err)
			}
			continue
		}
		if ids := anyAllocatable(p, available, must, size); ids != nil {
			t.Fatalf("seed %d: %v of %v, terms %+v: refused (%v), and %v would do", seed, size, specs, on, err, ids)
		}
	}
}

// anyAllocatable looks for size of the available IDs, must among them, that can
// be allocated together.
func anyAllocatable(p *pool, available, chosen []string, size int) []string {
	if len(chosen) == size {
		if _, err := p.validate(chosen); err != nil {
			return nil
		}
		return chosen
	}
	for i, id := range available {
		if slices.Contains(chosen, id) {
			continue
		}
		if ids := anyAllocatable(p, available[i+1:], append(slices.Clone(chosen), id), size); ids != nil {
			return ids
		}
	}
	return nil
}
