package nodegpus

import (
	"testing"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// TestOneResource: as the advertiser does, reports leave out the second resource if the kubelet
// injects GPUs.
func TestOneResource(t *testing.T) {
	t.Parallel()
	p := policy.Default()
	devices := []discovery.Device{{InstanceID: "C", SupportsCompute: true}, {InstanceID: "D", SupportsDisplay: true}}
	for injection, want := range map[policy.Injection]bool{policy.InjectByKubelet: false, policy.InjectByRuntime: true} {
		p.Injection = injection
		reports := NewReports(devices, p)
		if offered := reports[0].Resource != ""; offered != want || reports[1].Resource == "" {
			t.Errorf("%s: %q (%s) and %q", injection, reports[0].Resource, reports[0].NotOffered, reports[1].Resource)
		}
	}
}
