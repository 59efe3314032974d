//go:build e2e && linux

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"directx-nri/test/bed"
)

// TestShimBesideNRI has the runtime shim in front of the runtime of pods, and
// the NRI plugin and the advertiser beside it. The test takes the kubelet's
// place, to choose each moment.
func TestShimBesideNRI(t *testing.T) {
	s := &podShim{Node: bed.Start(t, bed.Options{
		NoKubelet: true, Shim: true, Replicas: 8, Inventory: bed.NewInventory(2, 0),
	})}
	s.client = s.Client(t, bed.PodNamespace)
	// The advertiser makes its sockets there without a kubelet too.
	if err := os.MkdirAll(bed.DevicePluginDir, 0o755); err != nil {
		t.Fatal(err)
	}
	s.Advertiser.Start(t)
	s.Plugin.Start(t)
	s.WaitPlugin(t)
	s.WaitGuard(t)
	for _, part := range []struct {
		name string
		test func(*testing.T)
	}{
		{"all healthy: everything once, and the shim changes nothing", s.testHealthy},
		{"a sandbox and a container without a request are untouched", s.testPodUntouched},
		{"an unguarded container gets its GPU from the shim, and keeps it", s.testRepaired},
		{"plugin frozen and guard up: refused, and right when tried again", s.testGuarded},
		{"a record that is lost is refused at the start", s.testLost},
	} {
		t.Run(part.name, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					s.DumpLogs(t)
				}
			}()
			part.test(t)
		})
	}
}

// podShim is the node that the parts of TestShimBesideNRI share.
type podShim struct {
	*bed.Node
	client *bed.Client
	next   int // the replica to be allocated next
}

// reconnected waits until the plugin says that containerd has it again, after a
// mark of its log. One that was thawed this moment still takes itself for
// connected.
func (s *podShim) reconnected(t *testing.T, since bed.Mark) {
	t.Helper()
	bed.Eventually(t, 30*time.Second, "the plugin is connected again", func() error {
		if !strings.Contains(s.Plugin.Log(since), "registered with the container runtime") {
			return errors.New("its log does not say so")
		}
		return nil
	})
	s.WaitPlugin(t)
}

// allocate returns the variables of a container that was given a GPU.
func (s *podShim) allocate(t *testing.T, gpu int) map[string]string {
	t.Helper()
	s.next++
	var env map[string]string
	bed.Eventually(t, 10*time.Second, "the advertiser allocates", func() (err error) {
		env, err = s.DevicePlugin(t).Allocate(s.Inventory.GPUs[gpu].Replica(s.next % 8))
		return err
	})
	return env
}

// mustHave fails the test unless a running container has exactly the given GPUs.
func (s *podShim) mustHave(t *testing.T, sandbox *bed.Direct, id string, gpus ...int) {
	t.Helper()
	view, err := sandbox.View(id)
	if err == nil {
		err = s.Compare(view, gpus...)
	}
	if err != nil {
		t.Errorf("container %s: %v", id, err)
	}
}

// mustBeUntouched fails the test unless a container or a sandbox runs with the
// spec that containerd made for it.
func (s *podShim) mustBeUntouched(t *testing.T, id string) {
	t.Helper()
	if given, started := s.client.Given(t, id), s.client.Started(t, id); !bytes.Equal(given, started) {
		t.Errorf("containerd made this spec of %s: %s\nand it runs with this: %s", id, given, started)
	}
}

func (s *podShim) testHealthy(t *testing.T) {
	sandbox := s.RunSandbox(t, "healthy")
	id, err := sandbox.Create("main", s.allocate(t, 0))
	if err != nil {
		t.Fatal(err)
	}
	if err := sandbox.Start(id); err != nil {
		t.Fatal(err)
	}
	s.mustHave(t, sandbox, id, 0)
	s.mustBeUntouched(t, id)
}

func (s *podShim) testPodUntouched(t *testing.T) {
	sandbox := s.RunSandbox(t, "untouched")
	s.mustBeUntouched(t, sandbox.ID())
	for name, env := range map[string]map[string]string{
		"plain": nil,
		// In a pod it grants nothing.
		"wishes": {"DIRECTX_VISIBLE_DEVICES": "all"},
	} {
		id, err := sandbox.Create(name, env)
		if err != nil {
			t.Fatal(err)
		}
		if err := sandbox.Start(id); err != nil {
			t.Fatal(err)
		}
		s.mustBeUntouched(t, id)
		s.mustHave(t, sandbox, id)
	}
}

// testRepaired: with the plugin and the guard away, nobody but the shim keeps
// the promise. Once the plugin is back it finds a container that NRI knows
// nothing of, and must leave it alone.
func (s *podShim) testRepaired(t *testing.T) {
	both := []*bed.Process{s.Plugin, s.Advertiser}
	each := func(t *testing.T, do func(*bed.Process, *testing.T)) {
		for _, p := range both {
			do(p, t)
		}
	}
	for _, row := range []struct {
		name       string
		gone, back func(*testing.T)
	}{
		{
			"both killed",
			func(t *testing.T) { each(t, func(p *bed.Process, t *testing.T) { p.Kill(t) }) },
			func(t *testing.T) { each(t, func(p *bed.Process, t *testing.T) { p.Start(t) }) },
		},
		{
			"both frozen",
			func(t *testing.T) { each(t, func(p *bed.Process, t *testing.T) { p.Freeze(t) }) },
			func(t *testing.T) { each(t, func(p *bed.Process, t *testing.T) { p.Thaw(t) }) },
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			sandbox := s.RunSandbox(t, "repaired")
			env := s.allocate(t, 1)
			row.gone(t)
			mark := s.Plugin.Mark()
			id, err := sandbox.Create("main", env)
			if err == nil {
				err = sandbox.Start(id)
			}
			if err == nil {
				s.mustHave(t, sandbox, id, 1)
				s.mustBeRepaired(t, id)
			}
			row.back(t)
			s.reconnected(t, mark)
			if err != nil {
				t.Fatalf("the container did not start: %v", err)
			}
			// The plugin stops a container within moments of being connected.
			bed.Never(t, 1500*time.Millisecond, "the plugin stops the container that the shim repaired", func() error {
				state, err := sandbox.State(id)
				if err == nil && state != cri.ContainerState_CONTAINER_RUNNING {
					err = fmt.Errorf("its state is %v", state)
				}
				return err
			})
			// A container that ends is made again, now with the plugin.
			again, err := sandbox.Create("main", env)
			if err == nil {
				err = sandbox.Start(again)
			}
			if err != nil {
				t.Fatalf("the container did not start again: %v", err)
			}
			s.mustHave(t, sandbox, again, 1)
			s.mustBeUntouched(t, again)
		})
	}
}

// mustBeRepaired fails the test unless it was the shim that gave a container
// its GPU.
func (s *podShim) mustBeRepaired(t *testing.T, id string) {
	t.Helper()
	destination := []byte(s.Inventory.GPUs[1].Mounts(s.Dir)[0].Destination)
	if bytes.Contains(s.client.Given(t, id), destination) {
		t.Errorf("the plugin adjusted container %s: the test does not show what it should", id)
	}
	if n := bytes.Count(s.client.Started(t, id), destination); n != 1 {
		t.Errorf("the spec of container %s has %s %d times, want once", id, destination, n)
	}
}

func (s *podShim) testGuarded(t *testing.T) {
	sandbox := s.RunSandbox(t, "guarded")
	env := s.allocate(t, 0)
	s.Plugin.Freeze(t)
	mark := s.Plugin.Mark()
	id, err := sandbox.Create("main", env)
	if err == nil {
		err = sandbox.Start(id)
	}
	s.Plugin.Thaw(t)
	if err == nil {
		t.Error("the container started")
	} else {
		mustContain(t, "the error", err.Error(), "directx-nri", "main")
	}
	if id != "" {
		if traces := s.client.TaskTraces(id); len(traces) > 0 {
			t.Errorf("a refused container left %v", traces)
		}
	}
	s.reconnected(t, mark)
	var again string
	bed.Eventually(t, stopSoon, "the container starts", func() (err error) {
		if again, err = sandbox.Create("main", env); err != nil {
			return err
		}
		return sandbox.Start(again)
	})
	s.mustHave(t, sandbox, again, 0)
	s.mustBeUntouched(t, again)
}

// testLost removes a container's record after its creation, when NRI has done
// its part: only the shim looks once more.
func (s *podShim) testLost(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"removed": os.Remove,
		"damaged": func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			sandbox := s.RunSandbox(t, "lost")
			env := s.allocate(t, 0)
			id, err := sandbox.Create("main", env)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(s.StateDir, "allocations", recordName(env[displayToken]))
			if err := change(path); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Error(err)
				}
			})
			err = sandbox.Start(id)
			if err == nil {
				t.Fatal("the container started")
			}
			mustContain(t, "the error of the start", err.Error(), "start failed: directx-nri: ", `container "main" of pod default/lost-`, displayToken, "delete the pod")
			if traces := s.client.TaskTraces(id); len(traces) > 0 {
				t.Errorf("a refused container left %v", traces)
			}
		})
	}
}
