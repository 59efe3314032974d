//go:build linux

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

const inventoryHead = "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices:\n"

// generate runs 'dxctl cdi generate' for an inventory.
func generate(t *testing.T, devices string, args ...string) (output string, err error) {
	t.Helper()
	inventory := privateFile(t, "gpus.yaml", inventoryHead+devices)
	return runCLI(t, append([]string{"cdi", "generate", "--inventory", inventory, "--state-dir", t.TempDir()}, args...)...)
}

func TestGenerateCDI(t *testing.T) {
	t.Parallel()
	const gpus = `- {instanceID: BROKEN, display: true, health: {reason: failed}, linux: {deviceNodes: [/dev/full]}}
- {instanceID: 'pci-0000:01:00.0', display: true, linux: {deviceNodes: [/dev/null]}}
- {instanceID: 'GPU\b', compute: true, linux: {deviceNodes: [/dev/zero]}}
`
	file := filepath.Join(t.TempDir(), "cdi", "directx-nri.yaml")
	printed, err := generate(t, gpus)
	testutil.NoError(t, err)
	if out, err := generate(t, gpus, "--file", file); err != nil || out != "wrote "+file+"\n" {
		t.Fatalf("%q %v", out, err)
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != printed {
		t.Errorf("the file differs from what is printed: %v\n%s", err, data)
	}
	spec, err := cdi.ReadSpec(file, 0)
	testutil.NoError(t, err)
	var names []string
	for _, d := range spec.Devices {
		names = append(names, d.Name)
	}
	if want := []string{"1", "pci-0000:01:00.0", "2", "GPU-b", "all"}; !slices.Equal(names, want) {
		t.Errorf("the devices are %v, want %v", names, want)
	}

	old := time.Unix(1e9, 0)
	testutil.NoError(t, os.Chtimes(file, old, old))
	if out, err := generate(t, gpus, "--file", file); err != nil || out != "" {
		t.Errorf("an equal specification: %q %v", out, err)
	}
	if info, err := os.Stat(file); err != nil || !info.ModTime().Equal(old) {
		t.Errorf("an equal file is written again: %v", err)
	}
}

func TestGenerateCDIErrors(t *testing.T) {
	t.Parallel()
	const gpu = "- {instanceID: ID, display: true, linux: {deviceNodes: [/dev/null]}}\n"
	for name, test := range map[string]struct {
		devices string
		args    []string
		want    string
	}{
		"no GPU":          {devices: strings.Replace(gpu, "display", "health: {reason: failed}, display", 1), want: "no GPU of this node"},
		"an index":        {devices: strings.Replace(gpu, "ID,", "'0',", 1), want: `"0" is empty or not unique`},
		"no name":         {devices: strings.Replace(gpu, "ID,", "'{}',", 1), want: `"" is empty or not unique`},
		"a file of JSON":  {devices: gpu, args: []string{"--file", "x.json"}, want: "does not end with .yaml"},
		"no such file":    {devices: gpu, args: []string{"--file", "/dev/null/x.yaml"}, want: "not a directory"},
		"assumed, a root": {devices: gpu, args: []string{"--assume-files", "--host-root", "/"}, want: "excludes"},
	} {
		_, err := generate(t, test.devices, test.args...)
		testutil.CheckError(t, name, err, test.want)
	}
}

// Runtimes that read our specification, with the library that all of them use, change a spec as
// the shim does.
func TestRuntimesMakeTheSameEdits(t *testing.T) {
	t.Parallel()
	library := filepath.Join(t.TempDir(), "libd3d12.so")
	testutil.WriteFile(t, library, "", 0o600)
	gpus := `- {instanceID: 'pci-0000:01:00.0', display: true, linux: {deviceNodes: [{path: /dev/null, containerPath: /dev/dxg}],
    libraries: [{source: ` + library + `, destination: /usr/lib/wsl/lib/libd3d12.so}]}}
- {instanceID: npu, compute: true, linux: {deviceNodes: [/dev/zero]}}
`
	dir := t.TempDir()
	_, err := generate(t, gpus, "--file", filepath.Join(dir, "directx-nri.yaml"))
	testutil.NoError(t, err)
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
	testutil.NoError(t, err)

	const before = `{"ociVersion":"1.2.0","process":{"env":["PATH=/bin"]},"mounts":[{"destination":"/proc","type":"proc","source":"proc"}],` +
		`"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`
	var byRuntime, byShim specs.Spec
	testutil.NoError(t, json.Unmarshal([]byte(before), &byRuntime))
	if missing, err := cache.InjectDevices(&byRuntime, cdiKind+"=all"); err != nil || len(missing) > 0 {
		t.Fatalf("%v is missing: %v %v", missing, err, cache.GetErrors())
	}
	inventory := privateFile(t, "gpus.yaml", inventoryHead+gpus)
	after, _, err := runCommand(t.Context(), t, before, "spec", "-", "--gpus", "all", "--inventory", inventory, "-o", "json")
	testutil.NoError(t, err, json.Unmarshal([]byte(after), &byShim))
	if len(byShim.Linux.Devices) != 2 || len(byShim.Mounts) != 2 || len(byShim.Process.Env) != 2 {
		t.Fatalf("the shim makes %s", after)
	}
	if diff := cmp.Diff(byShim, byRuntime, cmpopts.EquateEmpty(), cmpopts.SortSlices(func(a, b specs.LinuxDevice) bool { return a.Path < b.Path })); diff != "" {
		t.Errorf("the shim (-) and the library (+) differ:\n%s", diff)
	}
}

func TestCDIName(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"pci-0000:01:00.0":                        "pci-0000:01:00.0",
		`PCI\VEN_10DE&DEV_1EB8\4&1CFCA9AB&0&00D8`: "PCI-VEN_10DE-DEV_1EB8-4-1CFCA9AB-0-00D8",
		"{vmbus}": "vmbus",
		"Größe":   "Gr--e",
	} {
		if got := cdiName(text); got != want {
			t.Errorf("cdiName(%q) = %q, want %q", text, got, want)
		}
	}
}
