//go:build e2e && linux

package e2e

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

// TestShimBesideNRI runs pods through the runtime shim on a node that has the NRI
// plugin too. The test plays the kubelet, to choose the moment of each step.
func TestShimBesideNRI(t *testing.T) {
	s := start(t, bed.Options{NoKubelet: true, Shim: true, Replicas: 32, Inventory: bed.NewInventory(2, 0)})
	s.ConfigureContainerd(t)
	s.Advertiser.Start(t)
	s.Plugin.Start(t)
	s.WaitPlugin(t)
	for _, part := range []struct {
		name string
		test func(*testing.T)
	}{
		{"all healthy: everything once, and the shim changes nothing", s.testHealthy},
		{"a sandbox and a container without a request are untouched", s.testPodUntouched},
		{"a container that the plugin did not adjust gets its GPU from the shim", s.testRepaired},
		{"a record that is lost is refused at the start", s.testLost},
	} {
		t.Run(part.name, part.test)
	}
}

// begin creates and starts a container in a sandbox.
func begin(sandbox *bed.Direct, name string, answer bed.Answer) (id string, err error) {
	if id, err = sandbox.Create(name, answer); err == nil {
		err = sandbox.Start(id)
	}
	return id, err
}

// mustBeUntouched fails the test unless a container or a sandbox runs with the
// spec that containerd made for it.
func (s *suite) mustBeUntouched(t *testing.T, id string) {
	t.Helper()
	if given, started := s.pods.Given(t, id), s.pods.Started(t, id); !bytes.Equal(given, started) {
		t.Errorf("containerd made this spec of %s: %s\nand it runs with this: %s", id, given, started)
	}
}

// allocate returns what the advertiser answers for another container with a GPU.
func (s *suite) allocate(t *testing.T, gpu int) bed.Answer {
	t.Helper()
	s.allocated++
	return s.Allocate(t, s.Inventory.GPUs[gpu], s.allocated)
}

func (s *suite) testHealthy(t *testing.T) {
	sandbox := s.RunSandbox(t, "healthy")
	id, err := begin(sandbox, "main", s.allocate(t, 0))
	testutil.NoError(t, err)
	sandbox.MustHave(t, id, 0)
	s.mustBeUntouched(t, id)
}

func (s *suite) testPodUntouched(t *testing.T) {
	sandbox := s.RunSandbox(t, "untouched")
	s.mustBeUntouched(t, sandbox.ID)
	for name, answer := range map[string]bed.Answer{
		"plain": nil,
		// In a pod it grants nothing.
		"requests": {Envs: map[string]string{"DIRECTX_VISIBLE_DEVICES": "all"}},
	} {
		id, err := begin(sandbox, name, answer)
		testutil.NoError(t, err)
		s.mustBeUntouched(t, id)
		sandbox.MustHave(t, id)
	}
}

// testRepaired: with the plugin away, the shim gives the container its GPU and
// removes the interlock.
func (s *suite) testRepaired(t *testing.T) {
	for _, outage := range outages(s) {
		if outage.which[0] != s.Plugin {
			continue
		}
		t.Run(outage.name, func(t *testing.T) {
			sandbox := s.RunSandbox(t, "repaired")
			answer := s.allocate(t, 1)
			outage.begin(t)
			id, err := begin(sandbox, "main", answer)
			if err == nil {
				sandbox.MustHave(t, id, 1)
				s.mustBeRepaired(t, id)
			}
			outage.end(t)
			if err != nil {
				t.Fatalf("the container did not start: %v", err)
			}
			s.WaitPlugin(t)
			// A container that ended is created again, now with the plugin.
			bed.Eventually(t, 20*time.Second, "the plugin adjusts a container", func() error {
				again, err := begin(sandbox, "main", answer)
				if err != nil {
					return err
				}
				sandbox.MustHave(t, again, 1)
				if given, started := s.pods.Given(t, again), s.pods.Started(t, again); !bytes.Equal(given, started) {
					return errors.New("the shim did")
				}
				return nil
			})
		})
	}
}

// mustBeRepaired fails the test unless the shim, and not the plugin, gave a
// container its GPU.
func (s *suite) mustBeRepaired(t *testing.T, id string) {
	t.Helper()
	destination := []byte(s.Inventory.GPUs[1].Mounts(s.Dir)[0].Destination)
	if bytes.Contains(s.pods.Given(t, id), destination) {
		t.Errorf("the plugin adjusted container %s: the test does not show what it should", id)
	}
	if n := bytes.Count(s.pods.Started(t, id), destination); n != 1 {
		t.Errorf("the spec of container %s has %s %d times, want once", id, destination, n)
	}
}

// testLost removes a container's record between its creation, by NRI, and its
// start, by the shim.
func (s *suite) testLost(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"removed": os.Remove,
		"damaged": func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			sandbox := s.RunSandbox(t, "lost")
			answer := s.allocate(t, 0)
			id, err := sandbox.Create("main", answer)
			testutil.NoError(t, err)
			path := filepath.Join(s.StateDir, "allocations", recordName(answer.GetEnvs()[displayToken]))
			testutil.NoError(t, change(path))
			t.Cleanup(func() {
				if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Error(err)
				}
			})
			err = sandbox.Start(id)
			if err == nil {
				t.Fatal("the container started")
			}
			bed.MustContain(t, "the error of the start", err.Error(), `container "main" of pod default/lost-`, displayToken)
			if traces := s.pods.TaskTraces(id); len(traces) > 0 {
				t.Errorf("a refused container left %v", traces)
			}
		})
	}
}
