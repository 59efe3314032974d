package nodelabels

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/directx-nri/directx-nri/advertiser/resources"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

func gpu(change func(*discovery.Device, *policy.ResourceRule)) resources.Device {
	d := discovery.Device{Description: "NVIDIA Tesla T4", DriverVersion: "31.0.15.3770", DedicatedMemory: 16 << 30, SupportsDisplay: true}
	rule := policy.ResourceRule{Name: "directx.microsoft.com/display", Replicas: 4}
	if change != nil {
		change(&d, &rule)
	}
	return resources.Device{Device: d, Rule: &rule}
}

func TestForDevices(t *testing.T) {
	t.Parallel()
	t4 := map[string]string{
		"present": "true", "count": "1", "product": "NVIDIA-Tesla-T4", "memory": "16384", "driver": "31.0.15.3770",
		"kind": "display", "replicas": "4", "sharing": "shared", "health": "healthy",
	}
	noted := gpu(func(d *discovery.Device, _ *policy.ResourceRule) { d.Notes = []string{"a library is missing"} })
	broken := gpu(func(d *discovery.Device, _ *policy.ResourceRule) { d.Health.Reason = "it overheated" })
	noVersion := gpu(func(d *discovery.Device, _ *policy.ResourceRule) { d.DriverVersion = "" })
	for name, test := range map[string]struct {
		devices []resources.Device
		change  map[string]string // of the labels of t4; "" for a missing one
	}{
		"one":         {devices: []resources.Device{gpu(nil)}},
		"not offered": {devices: []resources.Device{{Device: discovery.Device{Description: "Basic"}, Reason: "it is a software renderer"}, gpu(nil)}},
		"degraded":    {devices: []resources.Device{gpu(nil), noted}, change: map[string]string{"count": "2", "health": "degraded"}},
		"unhealthy":   {devices: []resources.Device{broken, noted}, change: map[string]string{"count": "2", "health": "unhealthy"}},
		"exclusive":   {devices: []resources.Device{gpu(func(_ *discovery.Device, r *policy.ResourceRule) { r.Replicas = 1 })}, change: map[string]string{"replicas": "1", "sharing": "exclusive"}},
		"unknown": {devices: []resources.Device{gpu(func(d *discovery.Device, _ *policy.ResourceRule) {
			d.DriverVersion, d.DedicatedMemory, d.Description = "", 0, "®"
		})}, change: map[string]string{"product": "", "memory": "", "driver": ""}},
		"known of the second only": {devices: []resources.Device{noVersion, gpu(nil)}, change: map[string]string{"count": "2", "driver": ""}},
		"three that differ": {
			devices: []resources.Device{gpu(nil), gpu(func(d *discovery.Device, r *policy.ResourceRule) {
				d.Description, d.DedicatedMemory, r.Replicas = "AMD", 1<<30, 2
			}), gpu(nil)},
			change: map[string]string{"count": "3", "product": "", "memory": "", "replicas": ""},
		},
		"a long name": {
			devices: []resources.Device{gpu(func(d *discovery.Device, _ *policy.ResourceRule) {
				d.Description = strings.Repeat("a", maxValueBytes-1) + " (TM)"
			})},
			change: map[string]string{"product": strings.Repeat("a", maxValueBytes-1)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := map[string]string{}
			for name, value := range t4 {
				if changed, ok := test.change[name]; ok {
					value = changed
				}
				if value != "" {
					want[Prefix+name] = value
				}
			}
			got := ForDevices(test.devices)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for name, value := range got {
				if problems := slices.Concat(validation.IsQualifiedName(name), validation.IsValidLabelValue(value)); len(problems) > 0 {
					t.Errorf("%s=%s: %v", name, value, problems)
				}
				if !slices.Contains(Names(), name) {
					t.Errorf("Names lacks %s", name)
				}
			}
		})
	}
	if got := ForDevices(nil); got != nil {
		t.Errorf("a node without a GPU has the labels %v", got)
	}
}

func TestWriteAndRead(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "features.d", "directx-nri")
	for _, want := range []map[string]string{{Prefix + "count": "1", Prefix + "kind": "display"}, {Prefix + "count": "2"}, {}} {
		for range 2 { // The second does not write.
			testutil.NoError(t, Write(path, want))
		}
		if got, err := Read(path); err != nil || !cmp.Equal(got, want) {
			t.Errorf("read %v, %v, want %v", got, err, want)
		}
	}
	if data, err := os.ReadFile(path); string(data) != "# Written by directx-advertiser.\n" {
		t.Errorf("the file without labels is %q, %v", data, err)
	}
	info, err := os.Stat(path)
	testutil.NoError(t, err)
	if info.Mode().Perm()&0o044 != 0o044 {
		t.Errorf("others cannot read a file of mode %v", info.Mode())
	}
	if _, err := Read(filepath.Dir(path)); err == nil {
		t.Error("a directory is read")
	}
}
