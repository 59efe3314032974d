//go:build linux

package cdi

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/runtime-spec/specs-go"
	"sigs.k8s.io/yaml"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
)

// Runtimes that read our specification, with the library that all of them use, change a spec as
// the shim does.
func TestRuntimesMakeTheSameEdits(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "libd3d12.so")
	testutil.WriteFile(t, file, "", 0o600)
	devices := []discovery.Device{{
		InstanceID: "pci-0000:01:00.0", Description: "A GPU", SupportsDisplay: true, VendorID: pci.VendorAMD, LUID: 7,
		DeviceNodes: []discovery.DeviceNode{{Path: "/dev/null", ContainerPath: "/dev/dxg"}},
		Libraries:   []discovery.Library{{Source: file, Destination: "/usr/lib/wsl/lib/libd3d12.so"}},
		LibraryPath: []string{"/usr/lib/wsl/lib"},
	}, {
		InstanceID: "npu", SupportsCompute: true, DeviceNodes: []discovery.DeviceNode{{Path: "/dev/zero", ContainerPath: "/dev/zero"}},
	}}
	edits, _, err := gpuedits.Build("linux", devices, nil, hostfiles.Root("/"), policy.Resolved{Policy: policy.Policy{VisibilityHints: true}})
	if err != nil || len(edits.LinuxDevices) != 2 || len(edits.Mounts) != 1 || len(edits.Env) != 3 {
		t.Fatalf("%+v %v", edits, err)
	}
	spec, err := newSpec([]device{{"all", edits}})
	testutil.NoError(t, err)
	if spec.Version != "0.5.0" {
		t.Errorf("the specification has version %s, which Podman 4 does not read", spec.Version)
	}
	data, err := yaml.Marshal(spec)
	dir := t.TempDir()
	testutil.NoError(t, err, os.WriteFile(filepath.Join(dir, "directx-nri.yaml"), data, 0o600))
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
	testutil.NoError(t, err)

	const before = `{"ociVersion":"1.2.0","process":{"env":["PATH=/bin"]},"mounts":[{"destination":"/proc","type":"proc","source":"proc"}],` +
		`"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`
	var byRuntime, byShim specs.Spec
	testutil.NoError(t, json.Unmarshal([]byte(before), &byRuntime))
	if missing, err := cache.InjectDevices(&byRuntime, Kind+"=all"); err != nil || len(missing) > 0 {
		t.Fatalf("%v is missing: %v %v", missing, err, cache.GetErrors())
	}
	parsed, err := ocispec.ParseSpec([]byte(before))
	testutil.NoError(t, err)
	after, _, err := parsed.Apply(edits)
	testutil.NoError(t, err, json.Unmarshal(after, &byShim))
	if diff := cmp.Diff(byShim, byRuntime, cmpopts.EquateEmpty(), cmpopts.SortSlices(func(a, b specs.LinuxDevice) bool { return a.Path < b.Path })); diff != "" {
		t.Errorf("the shim (-) and the library (+) differ:\n%s", diff)
	}
}

func TestEditsWithoutCounterpart(t *testing.T) {
	t.Parallel()
	if _, err := newSpec([]device{{"0", ocispec.Edits{WindowsDevices: []specs.WindowsDevice{{ID: "x"}}}}}); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	_, err := newSpec([]device{{name: "a b"}})
	testutil.CheckError(t, "invalid name", err, `"a b"`)
	_, err = newSpec([]device{{name: "0"}, {name: "0"}})
	testutil.CheckError(t, "one name twice", err, `"0"`)
}

func TestName(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"pci-0000:01:00.0":                        "pci-0000:01:00.0",
		`PCI\VEN_10DE&DEV_1EB8\4&1CFCA9AB&0&00D8`: "PCI-VEN_10DE-DEV_1EB8-4-1CFCA9AB-0-00D8",
		"{vmbus}": "vmbus",
		"Größe":   "Gr--e",
	} {
		if got := Name(text); got != want {
			t.Errorf("Name(%q) = %q, want %q", text, got, want)
		}
	}
}
