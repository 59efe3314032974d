//go:build e2e && linux

package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

// createRounds is how many containers of each row are measured.
var createRounds = rounds(120)

// row is one kind of containers on one kind of node.
type row struct {
	name string
	// connect connects the node's plugins. Each row has a containerd of its own, so
	// that they stay connected while the rows take turns.
	connect func(t *testing.T, n *bed.Node)
	// gpu allocates a GPU to the containers, base is the index of the row to compare with.
	gpu  bool
	base int

	create, start sample
}

// TestCreateStart measures the creation and start of containers through CRI: with
// no NRI plugin, with plugins that do nothing or add the same mounts as ours, and
// with directx-nri, with and without a GPU.
func TestCreateStart(t *testing.T) {
	inventory := gpus(1)
	gpu := inventory.GPUs[0]
	ours := func(t *testing.T, n *bed.Node) {
		n.Plugin.Start(t)
		n.WaitPlugin(t)
	}
	rows := []*row{
		{name: "no plugin", connect: func(*testing.T, *bed.Node) {}},
		{name: "no-op plugin", connect: func(t *testing.T, n *bed.Node) { connect(t, n.NRISocket, nil) }},
		{name: fmt.Sprintf("plugin, %d mounts", mounts), connect: func(t *testing.T, n *bed.Node) { connect(t, n.NRISocket, mountsOf(gpu, n)) }},
		{name: "directx-nri, no GPU", connect: ours, base: 1},
		{name: "directx-nri, GPU", connect: ours, gpu: true, base: 2},
	}
	for _, r := range rows {
		n := bed.Start(t, bed.Options{NoKubelet: true, Replicas: 4, Inventory: inventory})
		var answer bed.Answer
		if r.gpu {
			n.Advertiser.Start(t)
			answer = n.Allocate(t, gpu, 0)
			n.Advertiser.Stop(t)
		}
		r.connect(t, n)
		sandbox := n.RunSandbox(t, "bench")
		r.start = sample{name: r.name, run: func() time.Duration {
			begin := time.Now()
			id, err := sandbox.Create("main", answer)
			r.create.times = append(r.create.times, time.Since(begin))
			if err == nil {
				err = sandbox.Start(id)
			}
			if err != nil {
				t.Fatalf("%s: start a container: %v", r.name, err)
			}
			took := time.Since(begin)
			sandbox.RemoveContainer(t, id)
			return took
		}}
		r.create.name = r.name
	}
	creates, starts := make([]*sample, len(rows)), make([]*sample, len(rows))
	for i, r := range rows {
		creates[i], starts[i] = &r.create, &r.start
	}
	interleave(starts, createRounds)
	for _, s := range creates {
		s.times = s.times[warmUp:]
	}
	for name, samples := range map[string][]*sample{"create": creates, "create + start": starts} {
		printSamples(fmt.Sprintf("%s of %d containers for each row", name, createRounds), samples)
		for i, r := range rows[1:] {
			samples[i+1].compare(samples[r.base], "")
		}
	}
}

// plugin is an NRI plugin that adjusts every container in the same way.
type plugin struct {
	adjustment *api.ContainerAdjustment
	ready      chan struct{}
}

// Synchronize implements the NRI plugin interface.
func (p *plugin) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	close(p.ready)
	return nil, nil
}

// CreateContainer implements the NRI plugin interface.
func (p *plugin) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return p.adjustment, nil, nil
}

// quiet discards the library's log.
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
	testutil.NoError(t, err)
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
			Options: []string{"bind", "ro", "nosuid", "nodev"},
		})
	}
	return adjustment
}
