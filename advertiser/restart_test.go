package advertiser

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

const renamed = "example.com/renamed"

// TestRestartWithOtherRules renames the resource of a GPU that a pod holds.
func TestRestartWithOtherRules(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	k := startKubelet(t, dir)
	config := testConfig(t, dir, newSource(displayGPU("A"), displayGPU("B")))
	recorder, pods := &memoryRecorder{}, &memoryPods{}
	config.Recorder, config.Pods = recorder, pods.tracker()
	r := run(t, config)
	k.await(displayResource, "A::0 A::1 B::0 B::1")
	if _, err := k.client(displayResource).Allocate(t.Context(), allocateRequest([]string{"A::0"})); err != nil {
		t.Fatal(err)
	}
	r.stop(t)

	config.Resources = []policy.Resource{{Name: renamed, Replicas: 3}}
	r = run(t, config)
	k.await(renamed, "B::0 B::1 B::2")
	k.await(displayResource, "A::0")
	if _, err := k.client(renamed).Allocate(t.Context(), allocateRequest([]string{"A::0"})); err == nil {
		t.Error("allocated under two names")
	}
	recorder.bind()
	pods.set(nil, "name-of-a")
	recorder.awaitLooks(t)
	pods.set(nil, "other")
	if err := r.wait(t); !errors.Is(err, ErrRestart) {
		t.Fatalf("Run returned %v", err)
	}
	r.ended <- nil
	run(t, config)
	k.await(renamed, "A::0 A::1 A::2 B::0 B::1 B::2")
	if left, _ := filepath.Glob(filepath.Join(dir, "directx-display.sock")); left != nil {
		t.Error("the old resource is still served")
	}
}

// TestRestartForAnotherName: a GPU that becomes another resource's, and a resource
// without a rule that no record holds any more.
func TestRestartForAnotherName(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		live   []allocation.Entry
		change func(*memorySource, *memoryRecorder)
	}{
		"another kind": {nil, func(source *memorySource, _ *memoryRecorder) { source.set(nil, computeGPU("A")) }},
		"no record":    {[]allocation.Entry{held(renamed, "X::0")}, func(_ *memorySource, r *memoryRecorder) { _ = r.End("") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := testutil.ShortDir(t)
			k := startKubelet(t, dir)
			source, recorder := newSource(displayGPU("A")), &memoryRecorder{live: test.live}
			config := testConfig(t, dir, source)
			config.Recorder = recorder
			r := run(t, config)
			k.await(displayResource, "A::0 A::1")
			test.change(source, recorder)
			if err := r.wait(t); !errors.Is(err, ErrRestart) {
				t.Errorf("Run returned %v", err)
			}
			r.ended <- nil
		})
	}
}

// TestRecordOfOtherName: records decide on the name only if none is under the name of the rule.
func TestRecordOfOtherName(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		live []allocation.Entry
		want string
	}{
		"no record":          {nil, ""},
		"another GPU's":      {[]allocation.Entry{held("old", "B::0")}, ""},
		"the rule's name":    {[]allocation.Entry{held("new", "A::0")}, ""},
		"another name":       {[]allocation.Entry{held("old", "B::0", "a::0")}, "old"},
		"both names":         {[]allocation.Entry{held("old", "A::0"), held("new", "A::1")}, ""},
		"several other ones": {[]allocation.Entry{held("old", "A::0"), held("older", "A::1")}, "old"},
	} {
		if got, ok := recordOfOtherName(test.live, "A", "new"); got.Resource != test.want || ok != (test.want != "") {
			t.Errorf("%s: %q, %t, want %q", name, got.Resource, ok, test.want)
		}
	}
}

// TestUnadvertised logs each device without a resource once. A GPU of another operating
// system's containers is one of them.
func TestUnadvertised(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	k := startKubelet(t, dir)
	windows := displayGPU("W")
	windows.DeviceNodes, windows.LocationPath = nil, "PCIROOT(0)#PCI(1B00)"
	config := testConfig(t, dir, newSource(displayGPU("A"), displayGPU("\xff"), discovery.Device{InstanceID: "N"}, windows))
	recorder := &memoryRecorder{}
	logger, log := newLog()
	config.Recorder, config.Log = recorder, logger
	run(t, config)
	k.await(displayResource, "A::0 A::1")
	recorder.awaitLooks(t)
	lines := log.with("Device is not advertised")
	if text := strings.Join(lines, ""); len(lines) != 3 || !strings.Contains(text, "not valid UTF-8") || !strings.Contains(text, "no device node") {
		t.Errorf("logged %q", lines)
	}
}
