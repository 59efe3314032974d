//go:build e2e && linux

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"directx-nri/test/bed"
)

const ruledResource = "example.com/gpu"

// startRuled starts a node with GPUs of two models and two drivers.
func startRuled(t *testing.T, rules string, offered map[string]int) *ruled {
	t.Helper()
	return &ruled{Node: bed.Start(t, bed.Options{
		Inventory: &bed.Inventory{GPUs: []bed.GPU{
			{Index: 0, Description: "NVIDIA A10-24Q", Memory: 24 << 30},
			{Index: 1, Description: "NVIDIA Tesla T4", Memory: 15 << 30},
			{Index: 2, Description: "NVIDIA Tesla T4", Memory: 15 << 30, Driver: "32.0.15.1234"},
		}},
		Config: "resources: [" + rules + "]", Offered: offered,
	})}
}

// TestModels offers GPUs by their model.
func TestModels(t *testing.T) {
	s := startRuled(t, `{name: example.com/a10, match: {description: "nvidia a10*", dedicatedMemory: {min: 20Gi}}, replicas: 2},
  {name: example.com/t4, match: {description: "*Tesla T4", driverVersion: {max: "31"}}, replicas: 3}`,
		map[string]int{"example.com/a10": 2, "example.com/t4": 3})
	s.run(t, "pods get a GPU of the model that they ask for", s.testModels)
}

// TestResources changes the resource rules of a node.
func TestResources(t *testing.T) {
	s := startRuled(t, "{name: example.com/gpu, replicas: 3}", map[string]int{ruledResource: 9})
	s.run(t, "distributed, then packed", s.testPolicies)
	s.run(t, "more than one container may have", s.testMaxPerContainer)
	s.run(t, "GPUs of several drivers for one container", s.testMixedDrivers)
}

// ruled is a node whose rules a test changes.
type ruled struct{ *bed.Node }

// run runs one part. The pods of a part are gone when it ends.
func (s *ruled) run(t *testing.T, name string, test func(*testing.T)) {
	t.Run(name, func(t *testing.T) {
		// Before the pods' removal, which would push the failure out of the logs'
		// end.
		defer func() {
			if t.Failed() {
				s.DumpLogs(t)
			}
		}()
		test(t)
		s.CheckDevices(t)
	})
}

// rules puts other rules in force and waits until the kubelet offers these numbers of
// replicas.
func (s *ruled) rules(t *testing.T, rules string, offered map[string]int) {
	t.Helper()
	s.Configure(t, "resources: ["+rules+"]")
	s.waitOffered(t, offered)
}

// waitOffered waits until the kubelet offers these numbers of replicas.
func (s *ruled) waitOffered(t *testing.T, offered map[string]int) {
	t.Helper()
	took := bed.Eventually(t, time.Minute, fmt.Sprintf("the kubelet offers %v", offered), func() error {
		got, err := s.Allocatable()
		if err != nil {
			return err
		}
		for resource, count := range offered {
			if got[resource] != count {
				return fmt.Errorf("%d replicas of %s", got[resource], resource)
			}
		}
		return nil
	})
	t.Logf("the kubelet offers %v after %v", offered, took.Round(time.Millisecond))
}

// start starts a pod that requests count replicas of resource, and fails the test unless
// it has the GPUs that the kubelet assigned. It returns the pod's name and those GPUs, one
// for each replica.
func (s *ruled) start(t *testing.T, resource string, count int) (pod string, gpus []int) {
	t.Helper()
	pod = s.Apply(t, bed.ResourcePod("gpu", resource, count))
	if refusal := s.Outcome(t, pod); refusal != "" {
		t.Fatalf("pod %s, which asks for %d of %s, is refused: %s", pod, count, resource, refusal)
	}
	gpus = s.AssignedGPUs(t, pod, "main")
	if len(gpus) != count {
		t.Errorf("the kubelet gave %d replicas of %s, want %d", len(gpus), resource, count)
	}
	s.MustHave(t, pod, "main", slices.Compact(slices.Clone(gpus))...)
	return pod, gpus
}

// refused fails the test unless the kubelet refuses a pod that requests count replicas
// of resource, with a status that contains what.
func (s *ruled) refused(t *testing.T, resource string, count int, what ...string) {
	t.Helper()
	pod := s.Apply(t, bed.ResourcePod("refused", resource, count))
	mustContain(t, "the pod's status", s.WaitRefused(t, pod), append(what, resource)...)
}

// testModels has a third GPU that matches no rule.
func (s *ruled) testModels(t *testing.T) {
	for _, row := range []struct {
		resource      string
		gpu, replicas int
	}{{"example.com/a10", 0, 2}, {"example.com/t4", 1, 3}} {
		for range row.replicas {
			if _, gpus := s.start(t, row.resource, 1); gpus[0] != row.gpu {
				t.Errorf("%s: the pod has GPU %d, want %d", row.resource, gpus[0], row.gpu)
			}
		}
		s.refused(t, row.resource, 1)
	}
	if got, err := s.Allocatable(); err != nil || len(got) != 2 {
		t.Errorf("the kubelet offers %v (%v), want the two resources of the rules and nothing else", got, err)
	}
	if !strings.Contains(s.Advertiser.Log(0), s.Inventory.GPUs[2].LocationPath()) {
		t.Error("the advertiser's log does not name the GPU that fits no rule")
	}
}

func (s *ruled) testPolicies(t *testing.T) {
	var spread []int
	for range 3 {
		_, gpus := s.start(t, ruledResource, 1)
		spread = append(spread, gpus...)
	}
	if slices.Sort(spread); !slices.Equal(spread, []int{0, 1, 2}) {
		t.Errorf("distributed: three pods are on GPUs %v, want one on each", spread)
	}

	// One replica of each GPU is still held.
	s.rules(t, "{name: example.com/gpu, replicas: 3, allocationPolicy: packed}", map[string]int{ruledResource: 9})
	var packed []int
	for range 4 {
		_, gpus := s.start(t, ruledResource, 1)
		packed = append(packed, gpus...)
	}
	if packed[0] != packed[1] || packed[2] != packed[3] || packed[0] == packed[2] {
		t.Errorf("packed: four pods are on GPUs %v, want two on one that has room for two, and then two on the next", packed)
	}
}

func (s *ruled) testMaxPerContainer(t *testing.T) {
	s.rules(t, "{name: example.com/gpu, replicas: 2, maxPerContainer: 1}", map[string]int{ruledResource: 6})
	s.start(t, ruledResource, 1)
	s.refused(t, ruledResource, 2, "UnexpectedAdmissionError", "maxPerContainer")
}

func (s *ruled) testMixedDrivers(t *testing.T) {
	s.rules(t, "{name: example.com/gpu}", map[string]int{ruledResource: 3})
	s.refused(t, ruledResource, 3, "UnexpectedAdmissionError", "31.0.15.5222", "32.0.15.1234", "mixedDrivers")
	pod, gpus := s.start(t, ruledResource, 2)
	if !slices.Equal(gpus, []int{0, 1}) {
		t.Errorf("a pod has GPUs %v, want the two of one driver", gpus)
	}
	s.Remove(t, pod)
	s.rules(t, "{name: example.com/gpu, mixedDrivers: allow}", map[string]int{ruledResource: 3})
	if _, gpus := s.start(t, ruledResource, 3); !slices.Equal(gpus, []int{0, 1, 2}) {
		t.Errorf("a pod has GPUs %v, want all three", gpus)
	}
}
