//go:build e2e && linux

package e2e

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"directx-nri/internal/allocation"
	"directx-nri/internal/paths"
	"directx-nri/internal/policy"
	"directx-nri/internal/testutil"
	"directx-nri/test/bed"
)

// reloaded is a node on which a pod runs while its configuration changes.
type reloaded struct {
	ruled
	metrics page
	// pod was started before the first change, and its container is view.
	pod  string
	view bed.View
}

// TestReload changes the configuration file under running daemons.
func TestReload(t *testing.T) {
	s := &reloaded{metrics: page(testutil.FreeAddress(t))}
	s.Node = bed.Start(t, bed.Options{
		Inventory: bed.NewInventory(2, 0), Config: s.settings("replicas: 4"),
		Offered: map[string]int{bed.Display: 8},
	})
	s.pod, _ = s.start(t, bed.Display, 1)
	s.view = s.Look(t, s.pod, "main")
	daemons := []int{s.Advertiser.PID(), s.Plugin.PID()}
	s.run(t, "a change takes effect", s.testChange)
	s.run(t, "a bad file is refused with the reason", s.testBadFiles)
	if now := s.MustHave(t, s.pod, "main", s.view.GPUs...); now.ID != s.view.ID {
		t.Error("the container that ran all the time was started again")
	}
	s.run(t, "a GPU is not handed out under its new name while a pod has it", s.testRename)
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
		s.Configure(t, s.settings(fmt.Sprintf("replicas: %d", replicas)))
		s.waitOffered(t, map[string]int{bed.Display: 2 * replicas})
	}
	s.metrics.waitFor(t, map[string]float64{"directx_config_last_reload_successful": 1})
}

func (s *reloaded) testBadFiles(t *testing.T) {
	// The settings of a row begin in the file's fifth line.
	for _, row := range []struct {
		name, settings string
		says           []string
	}{
		{"a value that is not possible", "replicas: 0", []string{"config.yaml:5: replicas"}},
		{
			"one wrong rule", "resources:\n  - {name: example.com/ok, match: {kind: display}}\n  - {name: example.com/x, replicas: 2000}",
			[]string{"config.yaml:7: resources[1].replicas"},
		},
	} {
		before := s.metrics.numbers(t)[`directx_config_reloads_total{result="refused"}`]
		line := s.ConfigureBadly(t, s.settings(row.settings))
		mustContain(t, row.name, line, append(row.says, "level=error")...)
		s.metrics.waitFor(t, map[string]float64{
			`directx_config_reloads_total{result="refused"}`: before + 1,
			"directx_config_last_reload_successful":          0,
		})
	}
	s.start(t, bed.Display, 1)
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
	s.Configure(t, s.settings("resources: [{name: example.com/renamed, replicas: 3}]"))
	s.waitOffered(t, map[string]int{"example.com/renamed": 3, bed.Display: 1})
	for range 3 {
		if _, gpus := s.start(t, "example.com/renamed", 1); gpus[0] == held {
			t.Errorf("GPU %d is handed out under its new name, and pod %s has it under the old one", held, s.pod)
		}
	}
	s.refused(t, "example.com/renamed", 1)
	// A container that restarts keeps its GPU under any rules.
	s.Crash(t, s.pod, "main")
	s.MustHave(t, s.pod, "main", held)
	bed.Never(t, 2*time.Second, "a GPU is offered under its new name while a pod has it", func() error {
		if got, err := s.Allocatable(); err != nil || got["example.com/renamed"] != 3 {
			return fmt.Errorf("the kubelet offers %v, %w", got, err)
		}
		return nil
	})

	s.Remove(t, s.pod)
	s.waitOffered(t, map[string]int{"example.com/renamed": 6})
	if _, gpus := s.start(t, "example.com/renamed", 1); gpus[0] != held {
		t.Errorf("the pod has GPU %d, want %d: the other is full", gpus[0], held)
	}
	s.waitOffered(t, map[string]int{bed.Display: 0})
}

// TestReloadUnderLoad changes the configuration file 12 times while 60 pods come
// and go. GPUs move between two resources; each has one that never does, with room
// for all of its pods.
func TestReloadUnderLoad(t *testing.T) {
	const pods, changes, atOnce = 60, 12, 8
	rules := func(left, right []int, policy string) string {
		paths := func(gpus []int) string {
			var all []string
			for _, i := range gpus {
				all = append(all, "'"+bed.GPU{Index: i}.LocationPath()+"'")
			}
			return strings.Join(all, ", ")
		}
		return fmt.Sprintf(`resources:
  - {name: example.com/left, match: {locationPath: [%s]}, replicas: 16, allocationPolicy: %s}
  - {name: example.com/right, match: {locationPath: [%s]}, replicas: 12, allocationPolicy: %[2]s}
`, paths(left), policy, paths(right))
	}
	good := []string{
		rules([]int{0, 1}, []int{2, 3}, "distributed"),
		rules([]int{0, 1, 2}, []int{3}, "packed"),
		rules([]int{0}, []int{1, 2, 3}, "distributed"),
		rules([]int{0, 2}, []int{1, 3}, "packed"),
	}
	bad := []string{"resources: [", "replicas: 0", "unknown: 1"}
	s := &ruled{bed.Start(t, bed.Options{
		Inventory: bed.NewInventory(4, 0), Config: good[0],
		Offered: map[string]int{"example.com/left": 32, "example.com/right": 24},
	})}
	steady, _ := s.start(t, "example.com/left", 1)
	view := s.Look(t, steady, "main")

	var all []string
	ran := 0
	settle := func(pod string) {
		if refusal := s.Outcome(t, pod); refusal != "" {
			// It came while the advertiser registered again, or its GPU moved after the
			// kubelet had chosen it.
			t.Logf("pod %s is refused: %s", pod, refusal)
			return
		}
		s.MustHave(t, pod, "main", s.AssignedGPUs(t, pod, "main")...)
		ran++
	}
	for i := range pods {
		pod := s.Apply(t, bed.ResourcePod("load", []string{"example.com/left", "example.com/right"}[i%2], 1))
		all = append(all, pod)
		// Every third configuration is bad, and no good one is that in force.
		switch change := i * changes / pods; {
		case i*changes%pods != 0:
		case change%3 == 2:
			s.WriteConfig(t, bad[change/3%len(bad)])
		default:
			s.WriteConfig(t, good[(change+1)%len(good)])
		}
		if len(all) > atOnce {
			oldest := all[len(all)-1-atOnce]
			settle(oldest)
			s.mustNotShare(t)
			s.Delete(t, oldest)
		}
	}
	for _, pod := range all[pods-atOnce:] {
		settle(pod)
	}
	t.Logf("%d of %d pods ran", ran, pods)
	if ran < pods/2 {
		t.Errorf("%d of %d pods ran", ran, pods)
	}
	s.mustNotShare(t)
	s.CheckDevices(t)
	s.mustBeRecorded(t)
	if now := s.MustHave(t, steady, "main", view.GPUs...); now.ID != view.ID {
		t.Error("the pod that ran all the time was started again")
	}
	s.Crash(t, steady, "main")
	s.MustHave(t, steady, "main", view.GPUs...)
}

// mustNotShare fails the test when two containers that run have one replica, or
// one GPU under two names.
func (s *ruled) mustNotShare(t *testing.T) {
	t.Helper()
	// A pod that ran before the list of devices was read has the same devices in it.
	running, err := s.Running()
	if err != nil {
		t.Fatal(err)
	}
	holder, name := map[string]string{}, map[int]bed.Holding{}
	for _, h := range s.Held(t) {
		if !slices.Contains(running, h.Pod) {
			continue
		}
		if other, ok := holder[h.Replica]; ok {
			t.Errorf("pods %s and %s have both replica %s", other, h.Pod, h.Replica)
		}
		holder[h.Replica] = h.Pod
		if other, ok := name[h.GPU]; ok && other.Resource != h.Resource {
			t.Errorf("GPU %d is pod %s's as %s and pod %s's as %s", h.GPU, other.Pod, other.Resource, h.Pod, h.Resource)
		}
		name[h.GPU] = h
	}
}

// mustBeRecorded fails the test unless the records of the pods that run say what the
// kubelet gave to them.
func (s *ruled) mustBeRecorded(t *testing.T) {
	t.Helper()
	running, err := s.Running()
	if err != nil {
		t.Fatal(err)
	}
	held := s.Held(t)
	for _, pod := range running {
		var want []string
		for _, h := range held {
			if h.Pod == pod {
				want = append(want, h.Resource+" "+h.Replica)
			}
		}
		var recorded []string
		for _, token := range slices.Compact(slices.Sorted(maps.Values(s.Look(t, pod, "main").Tokens))) {
			record, err := allocation.OpenStore(paths.Allocations(s.StateDir)).Get(allocation.Token(token))
			if err != nil {
				t.Errorf("pod %s: %v", pod, err)
			}
			for _, replica := range record.Replicas {
				recorded = append(recorded, record.Resource+" "+replica.ID)
			}
		}
		if slices.Sort(want); !slices.Equal(want, recorded) || len(want) == 0 {
			t.Errorf("pod %s was given %v, and its record says %v", pod, want, recorded)
		}
	}
	if len(running) == 0 {
		t.Error("no pod runs")
	}
}

// TestBadConfigurationByShim starts containers through the runtime shim while the
// configuration file is bad: the last node policy stays in force.
func TestBadConfigurationByShim(t *testing.T) {
	s := &ruled{bed.Start(t, bed.Options{
		Inventory: bed.NewInventory(2, 0), Shim: true, NRIOff: true, Config: "servedBy: shim\nreplicas: 4",
		Offered: map[string]int{bed.Display: 8},
	})}
	before, _ := s.start(t, bed.Display, 1)
	s.ConfigureBadly(t, "servedBy: shim\nreplicas: 0")
	after, _ := s.start(t, bed.Display, 2)
	s.Crash(t, before, "main")
	s.CheckDevices(t)

	// A policy that cannot be read permits nothing.
	path := policy.Path(s.StateDir)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, good[:len(good)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	mark := s.Kubelet.Mark()
	s.KillContainer(t, s.Look(t, after, "main"))
	mustContain(t, "the event of a container without a policy", s.WaitNotStarted(t, after, "main", mark), path)
	s.Configure(t, "servedBy: shim\nreplicas: 5")
	s.Nudge(t, after)
	s.WaitRunning(t, after)
	s.CheckDevices(t)
}
