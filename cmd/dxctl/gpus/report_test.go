package gpus

import (
	"testing"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// TestOneResource: as the advertiser does, reports leave out the second resource if the kubelet of
// a Windows node injects GPUs.
func TestOneResource(t *testing.T) {
	t.Parallel()
	p := policy.Default()
	devices := []discovery.Device{{InstanceID: "C", SupportsCompute: true}, {InstanceID: "D", SupportsDisplay: true}}
	for _, test := range []struct {
		injection policy.Injection
		os        string
		offered   bool
	}{{policy.InjectByKubelet, "windows", false}, {policy.InjectByKubelet, "linux", true}, {policy.InjectByRuntime, "windows", true}} {
		p.Injection = test.injection
		reports := NewReports(devices, p, test.os)
		if offered := reports[0].Resource != ""; offered != test.offered || reports[1].Resource == "" {
			t.Errorf("%s, %s: %q (%s) and %q", test.injection, test.os, reports[0].Resource, reports[0].NotOffered, reports[1].Resource)
		}
	}
}
