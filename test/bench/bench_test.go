//go:build e2e && linux

// Package bench measures what the product costs on a node of real parts: the
// time of a container's creation and start, what the runtime shim adds to one,
// and the daemons' memory. It prints what it measures and judges nothing:
// machines differ.
//
//	go test -tags e2e -count=1 -v -timeout 20m ./test/bench
package bench

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"directx-nri/test/bed"
)

func TestMain(m *testing.M) { os.Exit(bed.Main(m)) }

const (
	rounds   = 40 // in each, every setting has its turn
	perRound = 3  // containers of one setting in a round
	warmUp   = 5  // containers of each setting that are not counted
	mounts   = 20 // runtime files of the GPU
)

// setting is one way to run a node that is compared with the others. Each has
// a containerd of its own, so that its plugins stay connected while the
// settings take turns.
type setting struct {
	name string
	// enter connects the plugins and returns the variables of the containers.
	enter func(t *testing.T, n *bed.Node) bed.Answer

	node    *bed.Node
	sandbox *bed.Direct
	env     bed.Answer
	times   []times
}

// times is how long the two steps of one container took.
type times struct{ create, start time.Duration }

// TestCreateStart creates and starts containers through CRI with no NRI
// plugin, with one that does nothing, with one that adds the same mounts as
// ours, and with ours. The settings take turns, so that a slow moment of the
// machine meets all of them.
func TestCreateStart(t *testing.T) {
	gpu := bed.GPU{Index: 0, Libraries: mounts - 4}
	settings := []*setting{
		{name: "no plugin", enter: func(*testing.T, *bed.Node) bed.Answer { return bed.Answer{} }},
		{name: "no-op plugin", enter: func(t *testing.T, n *bed.Node) bed.Answer {
			connect(t, n.NRISocket, nil)
			return bed.Answer{}
		}},
		{name: fmt.Sprintf("plugin, %d mounts", mounts), enter: func(t *testing.T, n *bed.Node) bed.Answer {
			connect(t, n.NRISocket, mountsOf(gpu, n))
			return bed.Answer{}
		}},
		{name: "directx-nri", enter: func(t *testing.T, n *bed.Node) bed.Answer {
			env := allocate(t, n, gpu)
			n.Advertiser.Stop(t)
			n.Plugin.Start(t)
			n.WaitPlugin(t)
			return env
		}},
	}
	for _, s := range settings {
		s.node = bed.Start(t, bed.Options{
			NoKubelet: true, Replicas: 4, Inventory: &bed.Inventory{GPUs: []bed.GPU{gpu}},
		})
		s.sandbox = s.node.RunSandbox(t, "bench")
	}
	// The advertiser makes its sockets there without a kubelet too.
	if err := os.MkdirAll(bed.DevicePluginDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, s := range settings {
		s.env = s.enter(t, s.node)
		for range warmUp {
			createStart(t, s)
		}
	}
	for round := range rounds {
		for i := range settings {
			s := settings[(i+round)%len(settings)]
			for range perRound {
				s.times = append(s.times, createStart(t, s))
			}
		}
	}
	report(t, settings)
}

// allocate gets the variables for a container with the GPU.
func allocate(t *testing.T, n *bed.Node, gpu bed.GPU) bed.Answer {
	t.Helper()
	n.Advertiser.Start(t)
	plugin := n.DevicePlugin(t)
	var env bed.Answer
	bed.Eventually(t, 10*time.Second, "the advertiser allocates", func() (err error) {
		env, err = plugin.Allocate(gpu.Replica(0))
		return err
	})
	return env
}

func createStart(t *testing.T, s *setting) times {
	t.Helper()
	begin := time.Now()
	id, err := s.sandbox.Create("main", s.env)
	created := time.Now()
	if err != nil {
		t.Fatalf("create a container: %v", err)
	}
	if err := s.sandbox.Start(id); err != nil {
		t.Fatalf("start a container: %v", err)
	}
	took := times{create: created.Sub(begin), start: time.Since(created)}
	s.sandbox.RemoveContainer(t, id)
	return took
}

// plugin is an NRI plugin that gives every container the same.
type plugin struct {
	adjustment *api.ContainerAdjustment
	ready      chan struct{}
}

func (p *plugin) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	close(p.ready)
	return nil, nil
}

func (p *plugin) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return p.adjustment, nil, nil
}

// quiet is a log for a plugin that has nothing to say.
type quiet struct{}

func (quiet) Debugf(context.Context, string, ...any) {}
func (quiet) Infof(context.Context, string, ...any)  {}
func (quiet) Warnf(context.Context, string, ...any)  {}
func (quiet) Errorf(context.Context, string, ...any) {}

// connect registers a plugin with containerd until the test ends.
func connect(t *testing.T, socket string, adjustment *api.ContainerAdjustment) {
	t.Helper()
	p := &plugin{adjustment: adjustment, ready: make(chan struct{})}
	s, err := stub.New(p, stub.WithPluginName("bench"), stub.WithPluginIdx("50"), stub.WithSocketPath(socket),
		stub.WithLogger(quiet{}),
		stub.WithOnClose(func() {})) // Without it the stub ends the program.
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatalf("register a plugin with containerd: %v", err)
	}
	select {
	case <-p.ready:
	case <-time.After(10 * time.Second):
		t.Fatal("containerd did not synchronize a plugin within 10 s")
	}
	t.Cleanup(s.Stop)
}

// mountsOf is an adjustment with the GPU's mounts and nothing else.
func mountsOf(gpu bed.GPU, n *bed.Node) *api.ContainerAdjustment {
	adjustment := &api.ContainerAdjustment{}
	for _, mount := range gpu.Mounts(n.Dir) {
		adjustment.AddMount(&api.Mount{
			Source: mount.Source, Destination: mount.Destination, Type: "bind",
			Options: []string{"rbind", "ro", "nosuid", "nodev"},
		})
	}
	return adjustment
}

// report prints the medians of all settings and by how much they differ from
// the first. The difference is the median of the rounds' differences: what slows
// the machine for a while is in both sides of each.
func report(t *testing.T, settings []*setting) {
	t.Helper()
	steps := []struct {
		name string
		of   func(times) time.Duration
	}{
		{"create", func(t times) time.Duration { return t.create }},
		{"start", func(t times) time.Duration { return t.start }},
		{"create + start", func(t times) time.Duration { return t.create + t.start }},
	}
	for _, step := range steps {
		fmt.Printf("\n%-16s %22s %9s %9s %9s %12s\n", step.name, "setting", "p10", "median", "p90", "difference")
		var base []time.Duration // of each round
		for i, s := range settings {
			var all, ofRounds, differences []time.Duration
			for round := range rounds {
				var these []time.Duration
				for _, took := range s.times[round*perRound : (round+1)*perRound] {
					these = append(these, step.of(took))
				}
				all = append(all, these...)
				ofRounds = append(ofRounds, quantile(these, 0.5))
				if i > 0 {
					differences = append(differences, ofRounds[round]-base[round])
				}
			}
			if i == 0 {
				base, differences = ofRounds, []time.Duration{0}
			}
			fmt.Printf("%-16s %22s %6.2f ms %6.2f ms %6.2f ms %+9.2f ms\n", "", s.name,
				ms(quantile(all, 0.1)), ms(quantile(all, 0.5)), ms(quantile(all, 0.9)), ms(quantile(differences, 0.5)))
		}
	}
	fmt.Printf("\n%d containers for each setting, in %d rounds\n", rounds*perRound, rounds)
}

// quantile returns the value below which the share q of durations is.
func quantile(durations []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(durations))
	return sorted[min(int(float64(len(sorted))*q), len(sorted)-1)]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// TestMemory prints the daemons' memory on a node of 64 GPUs with 256 replicas
// each, after the kubelet has asked them about all of these.
func TestMemory(t *testing.T) {
	const gpus, replicas = 64, 256
	inventory := bed.NewInventory(gpus, 0)
	for i := range inventory.GPUs {
		inventory.GPUs[i].Libraries = mounts - 4
	}
	n := bed.Start(t, bed.Options{Replicas: replicas, Inventory: inventory, LogLevel: "info"})
	show := func(when string) {
		for _, p := range []*bed.Process{n.Advertiser, n.Plugin} {
			m := p.Memory(t)
			fmt.Printf("%-28s %-20s resident %5.1f MB (anonymous %5.1f MB), peak %5.1f MB\n",
				when, p.Name, mb(m.Resident), mb(m.Anonymous), mb(m.Peak))
		}
	}
	fmt.Printf("\nmemory at %d GPUs x %d replicas\n", gpus, replicas)
	show("after the start")

	var pods []string
	for range 5 {
		pods = append(pods, n.Apply(t, bed.GPUPod("memory", 2)))
	}
	n.WaitRunning(t, pods...)
	n.CheckDevices(t)
	show("with 5 pods of 2 GPUs")

	plugin := n.DevicePlugin(t)
	var available []string
	for _, gpu := range inventory.GPUs {
		for r := range replicas {
			available = append(available, gpu.Replica(r))
		}
	}
	var preferred, allocate []time.Duration
	for i := range 200 {
		begin := time.Now()
		ids, err := plugin.Preferred(available, 2)
		if err != nil || len(ids) != 2 {
			t.Fatalf("ask for a preferred allocation: %v, %v", ids, err)
		}
		preferred = append(preferred, time.Since(begin))
		begin = time.Now()
		if _, err := plugin.Allocate(inventory.GPUs[i%gpus].Replica(200 + i/gpus)); err != nil {
			t.Fatal(err)
		}
		allocate = append(allocate, time.Since(begin))
	}
	show("after 200 allocations")
	for range 5 { // Every change is sent to the kubelet, whole.
		n.WriteInventory(t, inventory.Without(0))
		n.WaitReady(t)
		n.WriteInventory(t, inventory)
		n.WaitReady(t)
	}
	show("after 10 changes")
	// At rest, as a node is nearly always.
	time.Sleep(time.Second)
	show("at rest, a second later")
	fmt.Printf("GetPreferredAllocation with %d available: median %.2f ms; Allocate: median %.2f ms, p90 %.2f ms\n",
		len(available), ms(quantile(preferred, 0.5)), ms(quantile(allocate, 0.5)), ms(quantile(allocate, 0.9)))
}

func mb(bytes uint64) float64 { return float64(bytes) / 1e6 }
