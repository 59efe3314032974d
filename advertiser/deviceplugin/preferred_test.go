package deviceplugin

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// gpuSpec returns a GPU written as "ID driver[*replicas]", with 4 replicas. That of
// driver x has a fault.
func gpuSpec(spec string) gpu {
	d := discovery.Device{VendorID: 0x10DE}
	device, times, _ := strings.Cut(spec, "*")
	replicas := 4
	_, _ = fmt.Sscan(device, &d.InstanceID, &d.DriverVersion)
	_, _ = fmt.Sscan(times, &replicas)
	if d.DriverVersion == "x" {
		d.Health.Reason = "driver stopped"
	}
	return newGPU(d, replicas)
}

// items returns the items of a list with commas.
func items(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}

// poolBy returns a pool of a list of GPUs as of gpuSpec.
func poolBy(rule policy.ResourceRule, specs string) *pool {
	var gpus []gpu
	for _, spec := range items(specs) {
		gpus = append(gpus, gpuSpec(spec))
	}
	return emptyPool(rule).next(gpus, nil)
}

// free returns the IDs of the n highest-numbered replicas of a list of GPUs, each written as "ID n".
func free(t *testing.T, p *pool, specs string) (ids []string) {
	t.Helper()
	for _, spec := range items(specs) {
		var id string
		var n int
		_, err := fmt.Sscan(spec, &id, &n)
		testutil.NoError(t, err)
		replicas := p.gpus[p.index[allocation.GPUKey(id)]].offered
		for number := replicas - n; number < replicas; number++ {
			ids = append(ids, idOf(fmt.Sprintf("%s-%d", id, number)))
		}
	}
	return ids
}

// checkRefused fails the test unless err is an invalid request with the text want, or nil if that is "".
func checkRefused(t *testing.T, name string, err error, want string) {
	t.Helper()
	testutil.CheckError(t, name, err, want)
	if err != nil && !errors.Is(err, ErrInvalidRequest) {
		t.Errorf("%s: %v is no fault of the request", name, err)
	}
}

func TestPoolPrefer(t *testing.T) {
	t.Parallel()
	packed := policy.ResourceRule{AllocationPolicy: policy.Packed, MixedDrivers: policy.AllowMixed}
	for _, test := range []struct {
		name          string
		rule          policy.ResourceRule // mixing, if empty
		gpus          string              // as for poolBy
		available     string              // as for free
		more          []string            // further available IDs, as they are
		must          string
		size          int
		want, wantErr string
	}{
		{name: "one from two idle: source order", gpus: "B d, A d", available: "A 4, B 4", size: 1, want: "B-0"},
		{name: "one: fewest in use", gpus: "A d, B d, C d", available: "A 2, B 3, C 1", size: 1, want: "B-1"},
		{name: "one: fewest in use whatever the driver", gpus: "A d, B e", available: "A 3, B 4", size: 1, want: "B-0"},
		{name: "one: full GPUs are skipped", gpus: "A d, B d", available: "B 1", size: 1, want: "B-3"},

		{name: "two different GPUs though one is busier", gpus: "A d, B d", available: "A 4, B 1", size: 2, want: "A-0 B-3"},
		{name: "more than there are GPUs: fewest in use after one of each", gpus: "A d, B d", available: "A 4, B 2", size: 4, want: "A-0 B-2 A-1 A-2"},

		{name: "one driver before different GPUs", gpus: "A d, B e", available: "A 3, B 4", size: 2, want: "B-0 B-1"},
		{name: "the driver with more GPUs, though busier", gpus: "A d, B e, C e", available: "A 4, B 1, C 1", size: 2, want: "B-3 C-3"},
		{name: "of drivers alike, the first", gpus: "A d, B e, C d, D e", available: "A 4, B 4, C 4, D 4", size: 2, want: "A-0 C-0"},
		{name: "a driver that has too few is not begun with", gpus: "A d, B d, C e", available: "A 1, B 1, C 4", size: 3, want: "C-0 C-1 C-2"},
		{name: "drivers are mixed when none has enough", gpus: "A d, B e", available: "A 2, B 2", size: 3, want: "A-2 B-2 A-3"},

		{name: "must include is first and decides the driver", gpus: "A d, B e, C e", available: "A 4, B 2, C 1", must: "C-3", size: 2, want: "C-3 B-2"},
		{name: "must include counts as its GPU's one", gpus: "A d, B d, C d", available: "A 4, B 3, C 2", must: "A-2", size: 3, want: "A-2 B-1 C-2"},
		{name: "must include whose driver has too few", gpus: "A d, B e, C e", available: "A 1, B 4, C 4", must: "A-3", size: 3, want: "A-3 B-0 C-0"},

		{name: "a fault", gpus: "A x, B d", available: "A 4, B 2", size: 2, want: "B-2 B-3"},
		{name: "unknown available ones are skipped", gpus: "A d", available: "A 1", more: []string{"X-0", "A-4", "A", ""}, size: 1, want: "A-3"},
		{name: "unknown must include", gpus: "A d", available: "A 4", must: "X-0", size: 1, wantErr: "no such replica"},
		{name: "less than must include", gpus: "A d", available: "A 4", must: "A-0 A-1", size: 1, wantErr: "must be included"},
		{name: "more than available", gpus: "A d", available: "A 2", more: []string{"X-0"}, size: 3,
			wantErr: "3 replicas of directx.microsoft.com/display requested, of which 0 must be included, and 2 others are available"},

		{name: "packed, one: most in use", rule: packed, gpus: "A d, B d, C d", available: "A 4, B 1, C 2", size: 1, want: "B-3"},
		{name: "packed, two: different GPUs, those most in use", rule: packed, gpus: "A d, B d, C d", available: "A 4, B 1, C 2", size: 2, want: "B-3 C-2"},
		{name: "packed, more than there are GPUs: the rest from the most used", rule: packed, gpus: "A d, B d", available: "A 3, B 4", size: 4, want: "A-1 B-0 A-2 A-3"},
		{name: "packed, must include", rule: packed, gpus: "A d, B d, C d", available: "A 4, B 4, C 3", must: "A-0", size: 2, want: "A-0 C-1"},

		{name: "different replicas: fewest in use, counted", gpus: "A d*8, B d*2", available: "A 6, B 1", size: 1, want: "B-1"},

		{name: "one driver has enough", gpus: "A d*2, B e*2", available: "A 1, B 2", size: 2, want: "B-0 B-1"},
	} {
		if test.rule.AllocationPolicy == "" {
			test.rule = mixing
		}
		p := poolBy(test.rule, test.gpus)
		got, err := p.prefer(append(free(t, p, test.available), idsOf(test.more)...), idsOf(strings.Fields(test.must)), test.size)
		checkRefused(t, test.name, err, test.wantErr)
		if got := named(strings.Join(got, " ")); got != test.want {
			t.Errorf("%s: %v, want %q", test.name, got, test.want)
		}
	}
}
