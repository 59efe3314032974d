//go:build e2e && linux

// Package bench measures what the product costs on a node of real parts: the
// creation and start of containers, calls of the runtime shim, and the daemons'
// memory. It prints what it measures and judges only the memory: machines differ.
//
//	go test -tags e2e -count=1 -v -timeout 20m ./test/bench
package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

func TestMain(m *testing.M) { os.Exit(bed.NodeSuite().Main(m)) }

const (
	warmUp = 5  // runs of each sample that are not counted
	mounts = 20 // driver files of the GPU
)

// sample is one measured operation.
type sample struct {
	name  string
	run   func() time.Duration
	times []time.Duration
}

// rounds returns n, and a quarter of it in CI, which only shows that benchmarks work.
func rounds(n int) int {
	if os.Getenv("CI") == "true" {
		return n / 4
	}
	return n
}

// interleave runs each sample once in each round, in an order that differs from
// round to round and is the same in each call.
func interleave(samples []*sample, rounds int) {
	random := rand.New(rand.NewPCG(0, 0))
	for i := range warmUp + rounds {
		for _, j := range random.Perm(len(samples)) {
			if took := samples[j].run(); i >= warmUp {
				samples[j].times = append(samples[j].times, took)
			}
		}
	}
}

func (s *sample) print() {
	fmt.Printf("  %-34s %7.2f ms %7.2f ms %7.2f ms\n", s.name, ms(quantile(s.times, 0.1)), ms(quantile(s.times, 0.5)), ms(quantile(s.times, 0.9)))
}

// printSamples prints samples under a heading, and before their differences.
func printSamples(title string, samples []*sample) {
	fmt.Printf("\n%s\n  %-34s %10s %10s %10s\n", title, "", "p10", "median", "p90")
	for _, s := range samples {
		s.print()
	}
	fmt.Printf("  %-34s %10s  %s\n", "", "median", "95% confidence interval of the median of the rounds' differences")
}

// compare prints how a sample differs from another, round by round.
func (s *sample) compare(base *sample, note string) {
	differences := make([]time.Duration, len(s.times))
	for i, took := range s.times {
		differences[i] = took - base.times[i]
	}
	low, median, high := interval(differences)
	fmt.Printf("  %-34s %+7.2f ms  %+.2f to %+.2f ms  %s\n", s.name+" - "+base.name, ms(median), ms(low), ms(high), note)
}

// interval returns the median of durations and its 95% confidence interval, which
// is that of the binomial distribution's normal approximation.
func interval(durations []time.Duration) (low, median, high time.Duration) {
	sorted := slices.Sorted(slices.Values(durations))
	n := float64(len(sorted))
	half := 1.96 * math.Sqrt(n) / 2
	at := func(rank float64) time.Duration { return sorted[min(max(int(rank), 0), len(sorted)-1)] }
	return at(math.Floor(n/2 - half)), at(n / 2), at(math.Ceil(n/2 + half))
}

// quantile returns the value below which the share q of durations is.
func quantile(durations []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(durations))
	return sorted[min(int(float64(len(sorted))*q), len(sorted)-1)]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// gpus returns an inventory of GPUs with the measured number of files.
func gpus(count int) *bed.Inventory {
	inventory := bed.NewInventory(count, 0)
	for i := range inventory.GPUs {
		inventory.GPUs[i].Libraries = mounts - 4
	}
	return inventory
}

// TestMemory bounds the daemons' memory on a node of 64 GPUs with 256 replicas each, after
// the kubelet has asked them about all of these: what they keep within ten seconds, as
// Go's runtime returns memory in the background, and the peak.
func TestMemory(t *testing.T) {
	const count, replicas = 64, 256
	inventory := gpus(count)
	n := bed.Start(t, bed.Options{Replicas: replicas, Inventory: inventory})
	show := func(when string) {
		const most, mostEver = 32, 40
		for _, p := range []*bed.Process{n.Advertiser, n.Plugin} {
			resident, peak := p.Memory(t)
			for deadline := time.Now().Add(10 * time.Second); mb(resident) > most && time.Now().Before(deadline); {
				time.Sleep(100 * time.Millisecond)
				resident, peak = p.Memory(t)
			}
			fmt.Printf("  %-24s %-20s resident %5.1f MB, peak %5.1f MB\n", when, p.Name, mb(resident), mb(peak))
			if mb(resident) > most || mb(peak) > mostEver {
				t.Errorf("%s: %s keeps more than %v MB, or had more than %v MB", when, p.Name, most, mostEver)
			}
		}
	}
	fmt.Printf("\nmemory at %d GPUs x %d replicas\n", count, replicas)
	show("after the start")
	for range 5 {
		n.RunPod(t, bed.GPUPod("memory", 2))
	}
	show("with 5 pods of 2 GPUs")

	plugin := n.DevicePlugin(t, bed.Display)
	var available []string
	for _, gpu := range inventory.GPUs {
		for r := range replicas {
			available = append(available, gpu.Replica(r))
		}
	}
	for i := range 200 {
		_, err := plugin.GetPreferredAllocation(t.Context(), &deviceplugin.PreferredAllocationRequest{
			ContainerRequests: []*deviceplugin.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: available, AllocationSize: 2}},
		})
		testutil.NoError(t, err)
		_, err = bed.Allocate(plugin, inventory.GPUs[i%count].Replica(200+i/count))
		testutil.NoError(t, err)
	}
	show("after 200 allocations")
	for range 5 { // Every change is sent to the kubelet, whole.
		n.WriteInventory(t, inventory.Without(0))
		n.WaitReady(t)
		n.WriteInventory(t, inventory)
		n.WaitReady(t)
	}
	show("after 10 changes")
}

func mb(bytes uint64) float64 { return float64(bytes) / 1e6 }
