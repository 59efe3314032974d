package decision

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/ocispec"
)

// TestContainerOf: only Windows has host processes; a pod of Linux can have the annotation, too.
func TestContainerOf(t *testing.T) {
	t.Parallel()
	for config, want := range map[string]bool{
		`{"linux":{}}`: true, `{"windows":{}}`: true,
		`{"linux":{},"annotations":{"io.kubernetes.cri.container-type":"sandbox"}}`:              false,
		`{"linux":{},"annotations":{"microsoft.com/hostprocess-container":"true"}}`:              true,
		`{"windows":{},"annotations":{"microsoft.com/hostprocess-container":"true"}}`:            false,
		`{"windows":{},"annotations":{"microsoft.com/hostprocess-container":"false"}}`:           true,
		`{"windows":{},"linux":{},"annotations":{"microsoft.com/hostprocess-container":"true"}}`: false,
	} {
		spec, err := ocispec.ParseSpec([]byte(config))
		testutil.NoError(t, err)
		if _, ok := ContainerOf(spec.SpecInfo, "id"); ok != want {
			t.Errorf("%s: %t", config, ok)
		}
	}
	facts := ocispec.SpecInfo{OS: "windows", Env: []string{"A=B"}, Annotations: map[string]string{"c": "d"}, Devices: []specs.WindowsDevice{{ID: "x"}}, HasWindows: true, HyperV: true}
	want := Container{OS: facts.OS, ID: "id", Env: facts.Env, Annotations: facts.Annotations, Devices: facts.Devices, HyperV: true}
	if got, _ := ContainerOf(facts, "id"); !cmp.Equal(want, got) {
		t.Error(cmp.Diff(want, got))
	}
}
