//go:build e2e && linux

package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

// reloaded is a node on which a pod runs while its configuration changes.
type reloaded struct {
	*suite
	metrics page
	// pod was started before the first change, and its container is view.
	pod  string
	view bed.View
}

// TestReload changes the configuration file under running daemons.
func TestReload(t *testing.T) {
	s := &reloaded{metrics: page(testutil.FreeAddress(t))}
	s.suite = start(t, bed.Options{
		Inventory: bed.NewInventory(2, 0), Config: s.settings("replicas: 4"),
		Offered: map[string]int{bed.Display: 8},
	})
	s.pod, _ = s.served(t, bed.Display, 1)
	s.view = s.Look(t, s.pod, "main")
	daemons := []int{s.Advertiser.PID(), s.Plugin.PID()}
	s.Part(t, "a change takes effect", s.testChange)
	s.Part(t, "a bad file is refused with the reason", s.testBadFiles)
	if now := s.MustHave(t, s.pod, "main", s.view.GPUs...); now.ID != s.view.ID {
		t.Error("the container that ran all the time was started again")
	}
	s.Part(t, "what a pod has of a GPU is not handed out under its new name", s.testRename)
	if now := []int{s.Advertiser.PID(), s.Plugin.PID()}; !slices.Equal(now, daemons) || !s.Advertiser.Running() || !s.Plugin.Running() {
		t.Errorf("the daemons' processes are %v, and were %v", now, daemons)
	}
}

// settings returns a configuration with the test's metrics address.
func (s *reloaded) settings(more string) string {
	return fmt.Sprintf("metrics: {address: '%s'}\n%s\n", s.metrics, more)
}

func (s *reloaded) testChange(t *testing.T) {
	for _, replicas := range []int{8, 2, 4} {
		s.Configure(t, s.settings(fmt.Sprintf("replicas: %d", replicas)), map[string]int{bed.Display: 2 * replicas})
	}
	s.metrics.waitFor(t, map[string]float64{"directx_config_last_reload_successful": 1})
}

func (s *reloaded) testBadFiles(t *testing.T) {
	before := s.metrics.numbers(t)[`directx_config_reloads_total{result="refused"}`]
	line := s.ConfigureUntil(t, s.settings("resources:\n  - {name: example.com/ok, match: {kind: display}}\n  - {name: example.com/x, replicas: 2000}"),
		"Cannot use the configuration")
	bed.MustContain(t, "one wrong rule", line, "config.yaml: resources[1].replicas", "level=error")
	s.metrics.waitFor(t, map[string]float64{
		`directx_config_reloads_total{result="refused"}`: before + 1,
		"directx_config_last_reload_successful":          0,
	})
	pod, _ := s.served(t, bed.Display, 1)
	s.Crash(t, pod, "main")
	// The pod lives until the advertiser has found it among the kubelet's, a second after
	// the allocation. Its record would not end with it otherwise.
	bed.Never(t, 2*time.Second, "something of a bad file is in force", func() error {
		if got, err := s.Allocatable(); err != nil || got[bed.Display] != 8 || got["example.com/ok"] != 0 {
			return fmt.Errorf("the kubelet offers %v, %w", got, err)
		}
		return nil
	})
	// The file is the one in force again.
	s.WriteConfig(t, s.settings("replicas: 4"))
	s.metrics.waitFor(t, map[string]float64{"directx_config_last_reload_successful": 1})
}

func (s *reloaded) testRename(t *testing.T) {
	held := s.view.GPUs[0]
	s.Configure(t, s.settings("resources: [{name: example.com/renamed, replicas: 3}]"), map[string]int{"example.com/renamed": 5, bed.Display: 1})
	for range 5 {
		s.served(t, "example.com/renamed", 1)
	}
	s.refused(t, "example.com/renamed", 1)
	// A container that restarts keeps its GPU under any rules.
	s.Crash(t, s.pod, "main")
	s.MustHave(t, s.pod, "main", held)
	bed.Never(t, 2*time.Second, "a replica is offered under its new name while a pod has it", func() error {
		if got, err := s.Allocatable(); err != nil || got["example.com/renamed"] != 5 {
			return fmt.Errorf("the kubelet offers %v, %w", got, err)
		}
		return nil
	})

	s.Remove(t, s.pod)
	s.Offered = map[string]int{"example.com/renamed": 6, bed.Display: 0}
	s.WaitOffered(t)
	if _, gpus := s.served(t, "example.com/renamed", 1); gpus[0] != held {
		t.Errorf("the pod has GPU %d, want %d: the other is full", gpus[0], held)
	}
}

// TestUnreadablePolicy has a policy that cannot be read, which permits nothing.
func TestUnreadablePolicy(t *testing.T) {
	s := start(t, bed.Options{
		Inventory: bed.NewInventory(2, 0), Config: "replicas: 4", Offered: map[string]int{bed.Display: 8},
	})
	pod, _ := s.served(t, bed.Display, 2)
	path := policy.Path(s.StateDir)
	good := string(bed.ReadFile(t, path))
	bed.WriteFile(t, path, good[:len(good)/2], 0o600)
	mark := s.Kubelet.Mark()
	s.KillContainer(t, s.Look(t, pod, "main"))
	bed.MustContain(t, "the event of a container without a policy", s.WaitNotStarted(t, pod, "main", mark), path)
	s.Configure(t, "replicas: 5", map[string]int{bed.Display: 10})
	s.SyncPods(t, pod)
	s.WaitRunning(t, pod)
	s.CheckDevices(t)
}
