//go:build e2e && linux

package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/test/bed"
)

const ruledResource = "example.com/gpu"

// TestResources offers GPUs of two models and two drivers by their model, and changes the rules.
func TestResources(t *testing.T) {
	s := start(t, bed.Options{
		Inventory: &bed.Inventory{GPUs: []bed.GPU{
			{Index: 0, Description: "NVIDIA A10-24Q", Memory: 24 << 30},
			{Index: 1, Description: "NVIDIA Tesla T4", Memory: 15 << 30},
			{Index: 2, Description: "Tesla T4", Memory: 15 << 30, Driver: "32.0.15.1234"},
		}},
		Config: `resources: [{name: example.com/a10, match: {description: "nvidia a10*", dedicatedMemory: {min: 20Gi}}, replicas: 2},
  {name: example.com/t4, match: {description: "*Tesla T4", driverVersion: {max: "31"}}, replicas: 3}]`,
		Offered: map[string]int{"example.com/a10": 2, "example.com/t4": 3},
	})
	s.Part(t, "pods get a GPU of the model that they ask for", s.testModels)
	s.Part(t, "distributed, then packed", s.testPolicies)
	s.Part(t, "GPUs of several drivers for one container", s.testMixedDrivers)
}

// rules puts other rules in force and waits until the kubelet offers this number of
// replicas.
func (s *suite) rules(t *testing.T, rules string, offered int) {
	t.Helper()
	s.Configure(t, "resources: ["+rules+"]", map[string]int{ruledResource: offered})
}

// served starts a pod that requests count replicas of resource, and fails the test unless
// it has the GPUs that the kubelet assigned. It returns the pod's name and those GPUs, one
// for each replica.
func (s *suite) served(t *testing.T, resource string, count int) (pod string, gpus []int) {
	t.Helper()
	pod = s.RunPod(t, bed.ResourcePod("gpu", resource, count))
	gpus = s.AssignedGPUs(t, pod, "main")
	if len(gpus) != count {
		t.Errorf("the kubelet gave %d replicas of %s, want %d", len(gpus), resource, count)
	}
	return pod, gpus
}

// refused fails the test unless the kubelet refuses a pod that requests count replicas
// of resource, with a status that contains what.
func (s *suite) refused(t *testing.T, resource string, count int, what ...string) {
	t.Helper()
	pod := s.Apply(t, bed.ResourcePod("refused", resource, count))
	bed.MustContain(t, "the pod's status", s.WaitRefused(t, pod), append(what, resource)...)
}

// testModels has a third GPU that matches no rule.
func (s *suite) testModels(t *testing.T) {
	for _, row := range []struct {
		resource      string
		gpu, replicas int
	}{{"example.com/a10", 0, 2}, {"example.com/t4", 1, 3}} {
		for range row.replicas {
			if _, gpus := s.served(t, row.resource, 1); gpus[0] != row.gpu {
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

func (s *suite) testPolicies(t *testing.T) {
	s.rules(t, "{name: example.com/gpu, replicas: 3}", 9)
	var spread []int
	for range 3 {
		_, gpus := s.served(t, ruledResource, 1)
		spread = append(spread, gpus...)
	}
	slices.Sort(spread)
	if !slices.Equal(spread, []int{0, 1, 2}) {
		t.Errorf("distributed: three pods are on GPUs %v, want one on each", spread)
	}

	// One replica of each GPU is still held.
	s.rules(t, "{name: example.com/gpu, replicas: 3, allocationPolicy: packed}", 9)
	var packed []int
	for range 4 {
		_, gpus := s.served(t, ruledResource, 1)
		packed = append(packed, gpus...)
	}
	if packed[0] != packed[1] || packed[2] != packed[3] || packed[0] == packed[2] {
		t.Errorf("packed: four pods are on GPUs %v, want two on one that has room for two, and then two on the next", packed)
	}
}

func (s *suite) testMixedDrivers(t *testing.T) {
	s.rules(t, "{name: example.com/gpu}", 3)
	s.refused(t, ruledResource, 3, "UnexpectedAdmissionError", "31.0.15.5222", "32.0.15.1234", "mixedDrivers")
	pod, gpus := s.served(t, ruledResource, 2)
	if !slices.Equal(gpus, []int{0, 1}) {
		t.Errorf("a pod has GPUs %v, want the two of one driver", gpus)
	}
	s.Remove(t, pod)
	s.rules(t, "{name: example.com/gpu, mixedDrivers: allow}", 3)
	if _, gpus := s.served(t, ruledResource, 3); !slices.Equal(gpus, []int{0, 1, 2}) {
		t.Errorf("a pod has GPUs %v, want all three", gpus)
	}
}
