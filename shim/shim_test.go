//go:build linux

package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/allocationtest"
	"github.com/directx-nri/directx-nri/internal/testutil/grpctest"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

const gpuPath = "PCIROOT(0)#PCI(1B00)"

// bed is a node with one GPU and the bundle of the container c1.
type bed struct {
	t     testing.TB
	dir   string
	files decision.Files
}

func newBed(t testing.TB) *bed {
	t.Helper()
	b := &bed{t: t, dir: t.TempDir(), files: hostfiles.Root("")}
	testutil.NoError(b.t, os.Mkdir(b.path("c1"), 0o700), os.Mkdir(b.path("state"), 0o700))
	b.write("lib/d3d12.so", "")
	library := func(name string) discovery.Library {
		return discovery.Library{Source: b.path("lib/" + name), Destination: b.path("lib/" + name)}
	}
	gpu := discovery.Device{
		InstanceID: `VMBUS\0`, Description: "Virtual GPU", LUID: 0xA0, SupportsDisplay: true, LocationPath: gpuPath,
		DeviceNodes: []discovery.DeviceNode{{Path: "/dev/null", ContainerPath: "/dev/dxg"}},
		Libraries:   []discovery.Library{library("d3d12.so"), library("missing.so")},
	}
	testutil.NoError(b.t, node.CompiledInventory(b.path("state")).Write([]discovery.Device{gpu}))
	b.configure(true, true)
	return b
}

// configure writes the node policy.
func (b *bed) configure(useInventory, environment bool) {
	b.t.Helper()
	p := policy.Default()
	p.UseInventory, p.Standalone.Environment = useInventory, environment
	testutil.NoError(b.t, policy.Write(b.path("state"), p))
}

func (b *bed) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bed) write(name, content string) {
	b.t.Helper()
	testutil.WriteFile(b.t, b.path(name), content, 0o600)
}

func (b *bed) read(name string) string {
	b.t.Helper()
	data, err := os.ReadFile(b.path(name))
	testutil.NoError(b.t, err)
	return string(data)
}

// edit edits config.json as a start with these additional arguments does.
func (b *bed) edit(args ...string) error {
	s := &shim{args: append(args, "-id", "c1", "start"), bundle: b.path("c1"), stateDir: b.path("state"), files: b.files, logger: newLog(b.path("state"))}
	s.container.ID = filepath.Base(s.bundle)
	err := s.editBundle()
	if err != nil {
		var stderr strings.Builder
		s.stderr = &stderr
		s.report(err)
		err = errors.New(stderr.String())
	}
	return err
}

// editSpec is edit of a new spec.
func (b *bed) editSpec(spec string, args ...string) error {
	b.t.Helper()
	b.write("c1/config.json", spec)
	return b.edit(args...)
}

// refuses fails the test unless err refuses the container with this text.
func (b *bed) refuses(err error, says ...string) {
	b.t.Helper()
	for _, text := range append(says, "directx-nri: container ") {
		testutil.CheckError(b.t, "refusal", err, text)
	}
}

// keeps fails the test unless a start leaves config.json with spec untouched.
func (b *bed) keeps(spec string) {
	b.t.Helper()
	b.write("c1/config.json", spec)
	before, err := os.Stat(b.path("c1/config.json"))
	testutil.NoError(b.t, err, b.edit())
	after, err := os.Stat(b.path("c1/config.json"))
	if got := b.read("c1/config.json"); err != nil || got != spec || !os.SameFile(before, after) || before.ModTime() != after.ModTime() {
		b.t.Errorf("config.json was touched: %s, %v", got, err)
	}
}

// standalone is the spec of a container with the given variables.
func standalone(env ...string) string { return specOf(nil, env...) }

func specOf(annotations map[string]string, env ...string) string {
	return encode(specs.Spec{
		Version: "1.1.0", Process: &specs.Process{Args: []string{"x"}, Env: append([]string{"PATH=/bin"}, env...)},
		Annotations: annotations, Linux: &specs.Linux{},
	})
}

// interlocked is the spec of a pod's Windows container, with the interlock of the advertiser's answer.
func interlocked(uid string) string {
	return encode(specs.Spec{
		Version: "1.1.0", Process: &specs.Process{Env: []string{"A=B"}}, Annotations: podAnnotations("container", uid),
		Windows: &specs.Windows{
			LayerFolders: []string{`C:\x`}, Devices: []specs.WindowsDevice{{ID: allocation.InterlockDeviceID, IDType: allocation.InterlockDeviceType}},
		},
	})
}

func encode(spec specs.Spec) string {
	data, err := json.Marshal(spec)
	if err != nil {
		return err.Error() // No spec, so that the test that uses it fails.
	}
	return string(data)
}

func podAnnotations(kind, uid string) map[string]string {
	return map[string]string{
		"io.kubernetes.cri.container-type": kind, "io.kubernetes.cri.sandbox-uid": uid, "io.kubernetes.cri.sandbox-id": "s",
		"io.kubernetes.cri.sandbox-name": "web", "io.kubernetes.cri.sandbox-namespace": "default", "io.kubernetes.cri.container-name": "main",
	}
}

func (b *bed) edited() (s specs.Spec) {
	b.t.Helper()
	testutil.NoError(b.t, json.Unmarshal([]byte(b.read("c1/config.json")), &s))
	return s
}

func TestWithoutARequestNothingChanges(t *testing.T) {
	t.Parallel()
	interlock := `{"id":"` + allocation.InterlockDeviceID + `","idType":"` + allocation.InterlockDeviceType + `"}`
	windowsHost := `{"annotations":{"microsoft.com/hostprocess-container":"true"},"windows":{"devices":[` + interlock + `]}}`
	copied := podAnnotations("container", "u1") // from the pod, by pod_annotations
	copied["directx.microsoft.com/allocation.display"] = strings.Repeat("0", 32)
	for name, spec := range map[string]string{
		"no request":             standalone(),
		"requests none":          standalone("DIRECTX_VISIBLE_DEVICES=none"),
		"sandbox":                specOf(podAnnotations("sandbox", "u1"), "DIRECTX_VISIBLE_DEVICES=all"),
		"annotation of the pod":  specOf(copied),
		"host process":           windowsHost,
		"pod requests by itself": specOf(podAnnotations("container", "u1"), "DIRECTX_VISIBLE_DEVICES=all"),
		"our own DaemonSet":      specOf(podAnnotations("container", "u1"), "X=directx-nri"),
		"malformed, no keyword":  `{"process":3}`,
		"spaces, unknown field":  "{ \"a\" : 1,\n \"linux\":{} }\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			for _, policy := range []string{b.read("state/policy.json"), "{", ""} { // The state of our files does not matter.
				b.write("state/policy.json", policy)
				b.keeps(spec)
			}
		})
	}
}

func TestStandaloneStart(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	for _, request := range []string{"all", "0", "0xA0", `VMBUS\0`} {
		testutil.NoError(t, b.editSpec(standalone("DIRECTX_VISIBLE_DEVICES="+request)))
		s := b.edited()
		if len(s.Linux.Devices) != 1 || s.Linux.Devices[0].Path != "/dev/dxg" || len(s.Mounts) != 1 || s.Mounts[0].Destination != b.path("lib/d3d12.so") {
			t.Errorf("%s: devices %v, mounts %v", request, s.Linux.Devices, s.Mounts)
		}
	}
	b.keeps(b.read("c1/config.json")) // What was edited already is not written again.
	if log := b.read("state/shim.log"); !strings.Contains(log, "missing.so") || !strings.Contains(log, "Container gets GPUs") {
		t.Errorf("the log does not report the missing file: %s", log)
	}
	b.refuses(b.editSpec(standalone("DIRECTX_VISIBLE_DEVICES=1")), `"c1"`, "dxctl devices")
}

func TestEditsKeepMode(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	for _, mode := range []os.FileMode{0o600, 0o640, 0o646} {
		b.write("c1/config.json", standalone("DIRECTX_VISIBLE_DEVICES=all"))
		testutil.NoError(b.t, os.Chmod(b.path("c1/config.json"), mode), b.edit())
		files, err := os.ReadDir(b.path("c1"))
		testutil.NoError(t, err)
		if info, err := files[0].Info(); err != nil || len(files) != 1 || info.Mode().Perm() != mode {
			t.Errorf("%v: files in the bundle: %v, %v", mode, files, err)
		}
	}
}

func TestPodStart(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	const key, display = "directx.microsoft.com/allocation.display", "directx.microsoft.com/display"
	container := map[string]string{key: string(allocationtest.Record(t, b.path("state/allocations"), display, `VMBUS\0`))}
	start := func(uid string, container, pod map[string]string) error {
		return b.editSpec(interlocked(uid), "-address", grpctest.ServeAnnotations(t, container, pod))
	}
	for range 2 { // The second is the next start of the same container.
		testutil.NoError(t, start("u1", container, nil))
		if got := b.edited().Windows.Devices; !slices.Equal(got, []specs.WindowsDevice{{ID: gpuPath, IDType: "vpci-location-path"}}) {
			t.Errorf("devices %v", got)
		}
	}
	b.refuses(start("u2", container, nil), "another container", `container "main" of pod default/web`)
	b.refuses(start("u3", container, container), "which only the kubelet may set")
	b.refuses(start("u3", nil, nil), "does not report which")
	b.refuses(start("u3", map[string]string{key: string(allocation.NewID())}, nil), "no allocation is recorded")
	b.refuses(start("u1", container, map[string]string{"directx.microsoft.com/extra-mounts": `..\x`}), "extra mounts")
	b.refuses(b.editSpec(interlocked("u1"), "-address", b.path("none")), "containerd does not report the container's annotations")
	if log := b.read("state/shim.log"); strings.Contains(log, "reason=slow") {
		t.Errorf("an error without a timeout: %s", log)
	}
}

func TestRequestOnABrokenNodeIsRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		breaks func(*bed)
		says   string
	}{
		"damaged policy": {func(b *bed) { b.write("state/policy.json", "{") }, "policy.json"},
		// The cause depends on this machine: it can have a /dev/dxg.
		"no inventory":                   {func(b *bed) { b.configure(false, true) }, "the GPUs of this node are unknown"},
		"compiled inventory is missing":  {func(b *bed) { _ = os.Remove(b.path("state/devices.json")) }, "devices.json"},
		"compiled inventory is damaged":  {func(b *bed) { b.write("state/devices.json", "{}\n") }, "dxctl config apply"},
		"state directory is not private": {func(b *bed) { _ = os.Chmod(b.path("state"), 0o777) }, access.ErrUntrusted.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			test.breaks(b)
			b.refuses(b.editSpec(standalone("DIRECTX_VISIBLE_DEVICES=all")), test.says)
			// A device of another kind can have a location path, too.
			b.keeps(`{"windows":{"devices":[{"id":"PCIROOT(0)#PCI(0200)","idType":"vpci-location-path"}]}}`)
			if isPrivate := access.CheckPrivate(b.path("state")) == nil; durable.Exists(b.path("state/shim.log")) != isPrivate {
				t.Errorf("the state directory is private: %t, and a log was written or not", isPrivate)
			}
		})
	}
}

type hungFiles struct {
	decision.Files
	hang chan struct{}
}

func (f hungFiles) MountSource(string) (string, error) {
	<-f.hang
	return "", fs.ErrNotExist
}

// TestHungDriver: a start ends before containerd ends it without its cause.
func TestHungDriver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		gpu := discovery.Device{
			InstanceID: "0", SupportsDisplay: true, LocationPath: gpuPath,
			DriverStorePath: `C:\x`, System32: []discovery.RuntimeFile{{Source: "a.dll", Destination: "a.dll"}},
		}
		testutil.NoError(t, node.CompiledInventory(b.path("state")).Write([]discovery.Device{gpu}))
		hang := make(chan struct{})
		defer close(hang)
		b.files = hungFiles{b.files, hang}
		device := `"windows":{"devices":[{"id":"` + gpuPath + `","idType":"vpci-location-path"}]}}`
		began := time.Now()
		b.refuses(b.editSpec(`{"process":{"env":["DIRECTX_VISIBLE_DEVICES=all"]},`+device), "did not respond within 7s")
		if took := time.Since(began); took != startTimeout {
			t.Errorf("refused after %s, want %s", took, startTimeout)
		}
		if log := b.read("state/shim.log"); !strings.Contains(log, "reason=slow") {
			t.Error(log)
		}
		b.keeps("{" + device) // Without our request, the device may not be a GPU.
	})
}

// An image can set the variable: a node that ignores it starts the container as it is,
// also if nothing is known about its GPUs.
func TestIgnoredRequest(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.configure(false, false)
	b.keeps(standalone("DIRECTX_VISIBLE_DEVICES=all"))
	if log := b.read("state/shim.log"); !strings.Contains(log, "has no effect") {
		t.Error(log)
	}
}

func TestConfigJSONThatCannotBeRead(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	for _, spec := range []string{"", "{", "null x", `{"process":{"env":["DIRECTX_VISIBLE`, `[1]`, `{"process":3,"a":"directx"}`, `{"annotations":{"directx.microsoft.com/x":1}}`} {
		b.refuses(b.editSpec(spec), "config.json: not an OCI runtime spec", `"c1"`)
	}
	// The runtimes ignore the case of keys.
	b.refuses(b.editSpec(`{"Linux":{},"process":{"env":["DIRECTX_VISIBLE_DEVICES=all"]}}`), "in another case")
	testutil.NoError(b.t, os.Remove(b.path("c1/config.json")), b.edit())
}

// TestRecordVersion: the advertiser offers nothing while containerd does not run the shim
// for the containers of pods.
func TestRecordVersion(t *testing.T) {
	t.Parallel()
	s := shim{stateDir: filepath.Join(t.TempDir(), "state")}
	for _, version := range []int{2, 3, 4, 2, 2} {
		s.recordBypass("/real", version)
		want := ""
		if version >= 3 {
			want = fmt.Sprint("the real shim /real answers with bootstrap version ", version)
		}
		testutil.CheckError(t, fmt.Sprint("version ", version), shimfile.CheckBypass(s.stateDir), want)
	}
}

// TestLogFormat: the policy is not read for a decision before config.json is known to be a spec.
func TestLogFormat(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	p := policy.Default()
	p.Log.Format = "json"
	testutil.NoError(t, policy.Write(b.path("state"), p))
	for _, spec := range []string{"{", standalone("DIRECTX_VISIBLE_DEVICES=all")} {
		_ = b.editSpec(spec)
	}
	lines := strings.Split(strings.TrimSpace(b.read("state/shim.log")), "\n")
	if len(lines) != 2 || slices.ContainsFunc(lines, func(line string) bool { return !json.Valid([]byte(line)) }) {
		t.Errorf("not two lines of JSON: %q", lines)
	}
}

func TestLogIsRotated(t *testing.T) {
	t.Parallel()
	for before, after := range map[int]int64{maxLogBytes: maxLogBytes + 5, maxLogBytes + 1: 5} {
		path := filepath.Join(t.TempDir(), "shim.log")
		testutil.WriteFile(t, path, strings.Repeat("x", before), 0o600)
		if n, err := logFile(path).Write([]byte("line\n")); n != 5 || err != nil {
			t.Errorf("%d bytes: %d, %v", before, n, err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() != after {
			t.Errorf("%d bytes: now %d, want %d, %v", before, info.Size(), after, err)
		}
	}
	if n, err := logFile("/dev/null/x").Write([]byte("line\n")); n != 5 || err != nil {
		t.Errorf("a log that cannot be written: %d, %v", n, err)
	}
}

// many returns the spec of a container with n variables, annotations and mounts of names as the shim uses them.
func many(n int, requests bool) string {
	spec := specs.Spec{Version: "1.1.0", Process: &specs.Process{}, Annotations: map[string]string{}, Linux: &specs.Linux{}}
	for i := range n {
		name := strconv.Itoa(i)
		spec.Annotations["directx.microsoft.com/extra-mounts."+name] = name
		spec.Process.Env = append(spec.Process.Env, "DIRECTX_"+name+"="+name)
		spec.Mounts = append(spec.Mounts, specs.Mount{Source: "/x", Destination: "/mnt/" + name})
	}
	if requests {
		spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES=all")
	}
	return encode(spec)
}

// TestWorkIsLinear: a pod chooses how many variables, annotations and mounts it has.
func TestWorkIsLinear(t *testing.T) { //nolint:paralleltest // It measures.
	for name, requests := range map[string]bool{"no request": false, "a GPU": true} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			testutil.CheckLinear(t, 1000, func(n int) func() {
				spec := many(n, requests)
				return func() { testutil.NoError(t, b.editSpec(spec)) }
			})
			if edited := b.read("c1/config.json") != many(10000, requests); edited != requests {
				t.Errorf("edited: %t", edited)
			}
		})
	}
}
