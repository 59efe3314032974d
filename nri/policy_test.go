package nri

import (
	"context"
	"errors"
	"strings"
	"testing"

	"directx-nri/internal/config"
	"directx-nri/nri/decision"
	"directx-nri/nri/extramounts"
)

// The pod's annotations reach the decision, and what is configured while the plugin
// runs counts from the next container on.
func TestAdjustKnowsPodsAnnotationsAndThePolicy(t *testing.T) {
	t.Parallel()
	b := newBed(t, gpu("0"))
	pod := testPod()
	pod.Annotations = map[string]string{"directx.microsoft.com/extra-mounts.main": "[/opt/gpu/tool]"}
	container := testContainer(displayKey + "=" + b.allocate(t, display, "0"))
	if a, err := b.Adjust(context.Background(), pod, container); !errors.Is(err, extramounts.ErrOff) || a != nil {
		t.Fatalf("without a policy: %v, error %v", a, err)
	}
	b.Configure(decision.Policy{
		ExtraMounts:     config.ExtraMounts{Sources: config.MountHostFolders, HostFolders: []string{"/opt/gpu"}, Max: 1},
		VisibilityHints: true,
	})
	adjustment, err := b.Adjust(context.Background(), pod, container)
	if err != nil {
		t.Fatal(err)
	}
	var sources []string
	for _, m := range adjustment.GetMounts() {
		sources = append(sources, m.GetSource())
	}
	if got := strings.Join(sources, " "); got != "/lib/d3d12.so /opt/gpu/tool" {
		t.Errorf("mounts %s", got)
	}
	if env := adjustment.GetEnv(); len(env) != 1 || env[0].GetKey() != "DIRECTX_DEVICES" {
		t.Errorf("variables %v", env)
	}
	b.Configure(decision.Policy{ExtraMounts: config.ExtraMounts{Sources: config.MountNothing}})
	if a, err := b.Adjust(context.Background(), pod, container); !errors.Is(err, extramounts.ErrOff) || a != nil {
		t.Errorf("after the policy changed: %v, error %v", a, err)
	}
}
