//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/runtime-spec/specs-go"

	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

const inventory = `apiVersion: directx.microsoft.com/v1alpha1
kind: Inventory
devices:
- {instanceID: BROKEN, display: true, health: {reason: failed}, linux: {deviceNodes: [/dev/full]}}
- {instanceID: 'pci-0000:01:00.0', display: true, linux: {deviceNodes: [/dev/null]}}
- {instanceID: 'GPU\b', compute: true, linux: {deviceNodes: [/dev/zero]}}
`

// A watch finds out that /dev/dxg is gone, also if its driver has never answered.
func TestDriverIsRemoved(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFile(t, filepath.Join(dir, "dev/dxg"), "", 0o600) // Its ioctls fail.
	o := cdiOptions{gpuFlags: gpuFlags{HostRoot: dir, StateDir: dir}}
	for _, want := range []string{"inappropriate ioctl", "no inventory is configured"} {
		_, _, err := o.generate(t.Context(), new(bytes.Buffer))
		testutil.CheckError(t, want, err, want)
		testutil.NoError(t, os.RemoveAll(filepath.Join(dir, "dev")))
	}
}

// runCDI runs 'dxctl cdi' and returns what it prints.
func runCDI(ctx context.Context, t *testing.T, args ...string) (output string, err error) {
	t.Helper()
	stdout, stderr, err := runCommand(ctx, t, "", append([]string{"cdi"}, args...)...)
	return stderr + stdout, err
}

func TestGenerate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	gpus, file := filepath.Join(dir, "gpus.yaml"), filepath.Join(dir, "cdi", "directx-nri.yaml")
	testutil.WriteFile(t, gpus, inventory, 0o600)
	generate := []string{"generate", "--inventory", gpus, "--state-dir", filepath.Join(dir, "none")}
	toFile := append(slices.Clone(generate), "--file", file)

	printed, err := runCDI(t.Context(), t, generate...)
	testutil.NoError(t, err)
	if out, err := runCDI(t.Context(), t, toFile...); err != nil || out != "wrote "+file+": 2 GPUs\n" {
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
	if out, err := runCDI(t.Context(), t, toFile...); err != nil || out != "" {
		t.Errorf("an equal file is written again: %q %v", out, err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	for _, args := range [][]string{{"remove", file}, append(slices.Clone(toFile), "--watch")} {
		if out, err := runCDI(ended, t, args...); err != nil || !strings.HasSuffix(out, "removed "+file+"\n") {
			t.Errorf("%s: %q %v", args, out, err)
		}
	}
	if out, err := runCDI(t.Context(), t, "remove", file); err != nil || out != file+" does not exist\n" {
		t.Errorf("removing nothing: %q %v", out, err)
	}

	testutil.WriteFile(t, gpus, strings.SplitAfter(inventory, "failed}")[0]+"}\n", 0o600)
	noDriver := []string{"generate", "--host-root", dir, "--state-dir", filepath.Join(dir, "none"), "--file", file}
	for _, args := range [][]string{toFile, noDriver} { // No GPU is usable any more, and there is no /dev/dxg any more.
		testutil.WriteFile(t, file, printed, 0o600)
		if out, err := runCDI(ended, t, append(slices.Clone(args), "--watch")...); err != nil || !strings.Contains(out, "removed "+file+"\n") || !strings.HasSuffix(out, file+" does not exist\n") {
			t.Errorf("%s: %q %v", args, out, err)
		}
	}
	testutil.WriteFile(t, gpus, inventory, 0o600)

	testutil.WriteFile(t, file, "# of others\n", 0o600)
	for _, args := range [][]string{toFile, {"remove", file}, append(slices.Clone(toFile), "--watch")} {
		if _, err := runCDI(t.Context(), t, args...); !errors.Is(err, errForeign) {
			t.Errorf("%s: %v", args, err)
		}
	}
	for want, args := range map[string][]string{
		"must end with .yaml": append(slices.Clone(generate), "--file", filepath.Join(dir, "x.json")),
		"requires --file":     append(slices.Clone(generate), "--watch"),
		"not a directory":     append(slices.Clone(generate), "--file", filepath.Join(gpus, "x.yaml")),
	} {
		_, err := runCDI(t.Context(), t, args...)
		testutil.CheckError(t, strings.Join(args, " "), err, want)
	}
}

// A watch continues after errors. A foreign file ends it.
func TestWatch(t *testing.T) {
	t.Parallel()
	noGPU := errors.New("no GPU")
	for name, test := range map[string]struct {
		results           []error // of each call of write
		written, messages int
		err               error
	}{
		"GPUs that come and go": {[]error{noGPU, noGPU, nil, noGPU}, 4, 2, nil},
		"a foreign file":        {[]error{errForeign, nil, nil}, 1, 0, errForeign},
	} {
		synctest.Test(t, func(t *testing.T) {
			var stderr bytes.Buffer
			written := 0
			ctx, cancel := context.WithCancel(t.Context())
			err := watch(ctx, func() error {
				if written++; written == len(test.results) {
					cancel()
				}
				return test.results[written-1]
			}, &stderr)
			if !errors.Is(err, test.err) || written != test.written || strings.Count(stderr.String(), "no GPU; trying again") != test.messages {
				t.Errorf("%s: written %d times, %v:\n%s", name, written, err, &stderr)
			}
			cancel()
		})
	}
}

// A watch writes the file when an obstacle is gone, and again when the policy changes.
func TestWatchUpdates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	gpus, cdiDir, stateDir := filepath.Join(dir, "gpus.yaml"), filepath.Join(dir, "cdi"), filepath.Join(dir, "state")
	testutil.WriteFile(t, gpus, inventory, 0o600)
	testutil.WriteFile(t, cdiDir, "", 0o600)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var out string
		var err error
		go func() {
			out, err = runCDI(ctx, t, "generate", "--inventory", gpus, "--state-dir", stateDir, "--file", filepath.Join(cdiDir, "gpus.yaml"), "--watch")
		}()
		time.Sleep(time.Minute)
		testutil.NoError(t, os.Remove(cdiDir))
		time.Sleep(time.Minute)
		p := policy.Default()
		p.VisibilityHints = false
		testutil.NoError(t, policy.Write(stateDir, p))
		time.Sleep(time.Minute)
		cancel()
		synctest.Wait()
		for text, count := range map[string]int{"trying again": 1, "wrote ": 2, "removed ": 1} {
			if strings.Count(out, text) != count || err != nil {
				t.Errorf("want %d of %q: %v\n%s", count, text, err, out)
			}
		}
	})
}

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
	spec, err := newCDISpec([]cdiDevice{{"all", edits}})
	testutil.NoError(t, err)
	if spec.Version != "0.5.0" {
		t.Errorf("the specification has version %s, which Podman 4 does not read", spec.Version)
	}
	data, err := json.Marshal(spec) // It is YAML, too.
	dir := t.TempDir()
	testutil.NoError(t, err, os.WriteFile(filepath.Join(dir, "directx-nri.yaml"), data, 0o600))
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
	testutil.NoError(t, err)

	const before = `{"ociVersion":"1.2.0","process":{"env":["PATH=/bin"]},"mounts":[{"destination":"/proc","type":"proc","source":"proc"}],` +
		`"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`
	var byRuntime, byShim specs.Spec
	testutil.NoError(t, json.Unmarshal([]byte(before), &byRuntime))
	if missing, err := cache.InjectDevices(&byRuntime, cdiKind+"=all"); err != nil || len(missing) > 0 {
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
	if _, err := newCDISpec([]cdiDevice{{"0", ocispec.Edits{WindowsDevices: []specs.WindowsDevice{{ID: "x"}}}}}); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	_, err := newCDISpec([]cdiDevice{{name: "a b"}})
	testutil.CheckError(t, "invalid name", err, `"a b"`)
	_, err = newCDISpec([]cdiDevice{{name: "0"}, {name: "0"}})
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
		if got := cdiName(text); got != want {
			t.Errorf("cdiName(%q) = %q, want %q", text, got, want)
		}
	}
}
