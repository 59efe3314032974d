package advertiser

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func TestServicesWithoutSockets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, err := New(testConfig(t, dir, newSource(displayGPU("A"), displayGPU("B"), computeGPU("C"))))
	if err != nil {
		t.Fatal(err)
	}
	services, err := a.Services(t.Context())
	if err != nil || len(services) != 2 {
		t.Fatalf("%v, %v", services, err)
	}
	display := services[ResourceDisplay]
	preferred, err := display.GetPreferredAllocation(t.Context(), &v1beta1.PreferredAllocationRequest{ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{
		{AvailableDeviceIDs: []string{"B::1", "A::1", "B::0"}, AllocationSize: 1},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"B::0"}, preferred.GetContainerResponses()[0].GetDeviceIDs()); diff != "" {
		t.Error(diff)
	}
	answer, err := display.Allocate(t.Context(), allocateRequest([]string{"B::0"}))
	if err != nil || len(answer.GetContainerResponses()[0].GetEnvs()) != 1 {
		t.Errorf("%v, %v", answer, err)
	}
	if _, err := services[ResourceCompute].Allocate(t.Context(), allocateRequest([]string{"B::0"})); err == nil {
		t.Error("a replica was allocated in the other resource")
	}
}

func TestServicesOfASourceThatFails(t *testing.T) {
	t.Parallel()
	source := newSource()
	source.err = errors.New("line 3: no such key")
	a, err := New(testConfig(t, t.TempDir(), source))
	if err != nil {
		t.Fatal(err)
	}
	if services, err := a.Services(t.Context()); err == nil || !strings.Contains(err.Error(), "line 3") || services != nil {
		t.Errorf("%v, %v", services, err)
	}
}
