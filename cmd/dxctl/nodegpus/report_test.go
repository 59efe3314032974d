package nodegpus

import (
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// TestResources: a report has the resource with which the advertiser offers the GPU. The kubelet
// injects GPUs of one resource. Linux containers need a device node.
func TestResources(t *testing.T) {
	t.Parallel()
	devices := []discovery.Device{{InstanceID: "C", SupportsCompute: true}, {InstanceID: "D", SupportsDisplay: true, DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg"}}}}
	for name, test := range map[string]struct {
		injection policy.Injection
		nodeOS    string
		want      string // why the first GPU is not offered
	}{
		"any node":          {policy.InjectByNRI, "", ""},
		"kubelet injection": {policy.InjectByKubelet, "", "with injection: kubelet, "},
		"Linux":             {policy.InjectByNRI, "linux", "it has no device node"},
	} {
		p := policy.Default()
		p.Injection = test.injection
		reports := NewReports(devices, p, test.nodeOS)
		if got := reports[0].NotOffered; !strings.HasPrefix(got, test.want) || (got == "") != (test.want == "") {
			t.Errorf("%s: it is not offered because %q, want %q", name, got, test.want)
		}
		if reports[1].Resource == "" {
			t.Errorf("%s: the other GPU is not offered", name)
		}
	}
}
