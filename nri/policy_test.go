package nri

import (
	"errors"
	"strings"
	"testing"

	"directx-nri/internal/policy"
	"directx-nri/nri/decision"
	"directx-nri/nri/extramounts"
	"directx-nri/ocispec"
)

// The pod's annotations reach the decision, and a changed policy applies to the
// next container.
func TestPodAnnotationsAndPolicy(t *testing.T) {
	t.Parallel()
	b := newBed(t, gpu("0"))
	pod := testPod()
	pod.Annotations = map[string]string{"directx.microsoft.com/extra-mounts.main": "[/opt/gpu/tool]"}
	container := testContainer(displayKey + "=" + b.allocate(t, display, "0"))
	if a, err := b.adjust(pod, container); !errors.Is(err, extramounts.ErrOff) || a != nil {
		t.Fatalf("without a policy: %v, error %v", a, err)
	}
	b.Policy = decision.Policy{
		ExtraMounts: policy.ExtraMounts{Sources: policy.MountHostDirectories, HostDirectories: []string{"/opt/gpu"}, Max: 1},
		Options:     ocispec.Options{VisibilityHints: true},
	}
	adjustment, err := b.adjust(pod, container)
	if err != nil {
		t.Fatal(err)
	}
	var sources []string
	for _, m := range adjustment.GetMounts()[1:] { // after the removal of the interlock
		sources = append(sources, m.GetSource())
	}
	if got := strings.Join(sources, " "); got != "/lib/d3d12.so /opt/gpu/tool" {
		t.Errorf("mounts %s", got)
	}
	if env := adjustment.GetEnv(); len(env) != 1 || env[0].GetKey() != "DIRECTX_DEVICES" {
		t.Errorf("variables %v", env)
	}
	b.Policy = decision.Policy{ExtraMounts: policy.ExtraMounts{Sources: policy.MountNothing}}
	if a, err := b.adjust(pod, container); !errors.Is(err, extramounts.ErrOff) || a != nil {
		t.Errorf("after the policy changed: %v, error %v", a, err)
	}
}
