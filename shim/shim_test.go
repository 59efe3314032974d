//go:build linux

package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/allocationtest"
	"github.com/directx-nri/directx-nri/internal/testutil/grpctest"
	"github.com/directx-nri/directx-nri/shim/bypass"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

const gpuPath = "PCIROOT(0)#PCI(1B00)"

// bed is a node with the shim, a real shim, and a bundle.
type bed struct {
	t    testing.TB
	dir  string
	shim string // the program that containerd would run
	env  []string
}

func newBed(t testing.TB) *bed {
	t.Helper()
	b := &bed{t: t, dir: t.TempDir()}
	testutil.NoError(b.t, os.Mkdir(b.path("bundle"), 0o700), os.Mkdir(b.path("state"), 0o700))
	b.shim = b.program("bin/" + ourName)
	b.program("bin/" + realName)
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
	b.configure(nil)
	return b
}

// configure writes the node policy: the defaults with the inventory, changed by change.
func (b *bed) configure(change func(*policy.Policy)) {
	b.t.Helper()
	p := policy.Default()
	p.UseInventory, p.Standalone.Environment = true, true
	if change != nil {
		change(&p)
	}
	testutil.NoError(b.t, policy.Write(b.path("state"), p))
}

func (b *bed) stat(name string) os.FileInfo {
	b.t.Helper()
	info, err := os.Stat(b.path(name))
	testutil.NoError(b.t, err)
	return info
}

func (b *bed) path(name string) string { return filepath.Join(b.dir, name) }

// program copies this test's program to a path, whose name selects what it does.
func (b *bed) program(name string) string {
	b.t.Helper()
	self, err := os.Executable()
	testutil.NoError(b.t, err)
	data, err := os.ReadFile(self)
	testutil.NoError(b.t, err)
	testutil.WriteFile(b.t, b.path(name), string(data), 0o700)
	return b.path(name)
}

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

// result is what came of a call.
type result struct {
	stdout, stderr string
	status         int
}

func (b *bed) run(args ...string) result {
	b.t.Helper()
	command := exec.Command(b.shim, args...)
	command.Dir = b.path("bundle")
	command.Stdin = strings.NewReader("runtime options")
	command.Env = append(append(os.Environ(), paths.StateDirVariable+"="+b.path("state"), "MARK=kept"), b.env...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil && command.ProcessState == nil {
		b.t.Fatal(err)
	}
	return result{stdout.String(), stderr.String(), command.ProcessState.ExitCode()}
}

// start runs a start of the container that spec describes.
func (b *bed) start(spec string) result {
	b.t.Helper()
	b.write("bundle/config.json", spec)
	return b.run("-namespace", "default", "-id", "c1", "start")
}

// passed checks that the real shim was called, with everything as it came in.
func (b *bed) passed(r result, args ...string) {
	b.t.Helper()
	var got realCall
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || r.status != 0 || r.stderr != "" {
		b.t.Fatalf("status %d, output %q, errors %q", r.status, r.stdout, r.stderr)
	}
	want := realCall{Args: args, Stdin: "runtime options", Mark: "kept", Dir: b.path("bundle")}
	if diff := cmp.Diff(want, got); diff != "" {
		b.t.Fatalf("the real shim's call (-want +got):\n%s", diff)
	}
}

func (b *bed) started(r result) {
	b.t.Helper()
	b.passed(r, "-namespace", "default", "-id", "c1", "start")
}

// refused checks that the start was refused in one line, before the real shim.
func (b *bed) refused(r result, says ...string) {
	b.t.Helper()
	if r.status != exitFailure || r.stdout != "" {
		b.t.Fatalf("status %d, output %q, errors %q; want a refusal", r.status, r.stdout, r.stderr)
	}
	if !strings.HasPrefix(r.stderr, "directx-nri: container ") || strings.ContainsAny(r.stderr, "\r\n") {
		b.t.Errorf("errors %q are not our one line", r.stderr)
	}
	for _, text := range says {
		if !strings.Contains(r.stderr, text) {
			b.t.Errorf("%q does not say %q", r.stderr, text)
		}
	}
}

// standalone is the spec of a container with the given variables.
func standalone(env ...string) string { return specOf(nil, env...) }

func specOf(annotations map[string]string, env ...string) string {
	data, err := json.Marshal(specs.Spec{
		Version: "1.1.0", Process: &specs.Process{Args: []string{"x"}, Env: append([]string{"PATH=/bin"}, env...)},
		Annotations: annotations, Linux: &specs.Linux{},
	})
	if err != nil {
		return err.Error() // No spec, so that the test that uses it fails.
	}
	return string(data)
}

// interlocked is the spec of a pod's Windows container, with the interlock of the advertiser's answer.
func interlocked(uid string) string {
	data, err := json.Marshal(specs.Spec{
		Version: "1.1.0", Process: &specs.Process{Env: []string{"A=B"}}, Annotations: podAnnotations("container", uid),
		Windows: &specs.Windows{
			LayerFolders: []string{`C:\x`}, Devices: []specs.WindowsDevice{{ID: allocation.InterlockDeviceID, IDType: allocation.InterlockDeviceType}},
		},
	})
	if err != nil {
		return err.Error()
	}
	return string(data)
}

func podAnnotations(kind, uid string) map[string]string {
	return map[string]string{
		"io.kubernetes.cri.container-type": kind, "io.kubernetes.cri.sandbox-uid": uid, "io.kubernetes.cri.sandbox-id": "s",
		"io.kubernetes.cri.sandbox-name": "web", "io.kubernetes.cri.sandbox-namespace": "default", "io.kubernetes.cri.container-name": "main",
	}
}

// allocate records the allocation of the Windows GPU, and returns the annotations of its container.
func (b *bed) allocate() map[string]string {
	b.t.Helper()
	const display = "directx.microsoft.com/display"
	return map[string]string{allocation.AnnotationKey(display): string(allocationtest.Record(b.t, b.path("state/allocations"), display, `VMBUS\0`))}
}

// containerd is the CRI service of containerd.
type containerd struct {
	runtime.UnimplementedRuntimeServiceServer
	container, pod map[string]string // annotations
}

func (c *containerd) ContainerStatus(_ context.Context, r *runtime.ContainerStatusRequest) (*runtime.ContainerStatusResponse, error) {
	if r.GetContainerId() != "c1" {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	return &runtime.ContainerStatusResponse{Status: &runtime.ContainerStatus{Id: "c1", Annotations: c.container}}, nil
}

func (c *containerd) PodSandboxStatus(_ context.Context, r *runtime.PodSandboxStatusRequest) (*runtime.PodSandboxStatusResponse, error) {
	if r.GetPodSandboxId() != "s" {
		return nil, status.Error(codes.NotFound, "no such sandbox")
	}
	return &runtime.PodSandboxStatusResponse{Status: &runtime.PodSandboxStatus{Id: "s", Annotations: c.pod}}, nil
}

// startPod runs a start of a pod's container that has the interlock and these annotations.
func (b *bed) startPod(uid string, container, pod map[string]string) result {
	b.t.Helper()
	socket := filepath.Join(testutil.ShortDir(b.t), "s")
	grpctest.Serve(b.t, socket, &runtime.RuntimeService_ServiceDesc, &containerd{container: container, pod: pod})
	b.write("bundle/config.json", interlocked(uid))
	return b.run("-namespace", "k8s.io", "-address", socket, "-id", "c1", "start")
}

// startedPod checks that a pod's container was started with the GPU, and without the interlock.
func (b *bed) startedPod(r result) {
	b.t.Helper()
	if r.status != 0 || r.stderr != "" {
		b.t.Fatalf("status %d, errors %q", r.status, r.stderr)
	}
	want := []specs.WindowsDevice{{ID: gpuPath, IDType: "vpci-location-path"}}
	if got := b.edited().Windows.Devices; !slices.Equal(got, want) {
		b.t.Errorf("devices %v", got)
	}
}

func (b *bed) edited() specs.Spec {
	b.t.Helper()
	var s specs.Spec
	testutil.NoError(b.t, json.Unmarshal([]byte(b.read("bundle/config.json")), &s))
	return s
}

// hasGPU checks that the bundle's container has the GPU and its one library.
func (b *bed) hasGPU() {
	b.t.Helper()
	s := b.edited()
	if len(s.Linux.Devices) != 1 || s.Linux.Devices[0].Path != "/dev/dxg" {
		b.t.Errorf("devices %v", s.Linux.Devices)
	}
	if len(s.Mounts) != 1 || s.Mounts[0].Destination != b.path("lib/d3d12.so") {
		b.t.Errorf("mounts %v", s.Mounts)
	}
}

func TestWhatIsNotAStartPassesThrough(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.write("bundle/config.json", standalone("DIRECTX_VISIBLE_DEVICES=99"))
	for _, args := range [][]string{
		{"-namespace", "default", "-id", "c1", "-bundle", "/x", "delete"}, {"-info"}, {"-v"}, {}, {"-id", "start", "delete"}, {"a b", `"`, ""},
	} {
		r := b.run(args...)
		if len(args) == 0 {
			args = []string{}
		}
		b.passed(r, args...)
	}
	b.env = []string{"REAL_STATUS=42", "REAL_STDERR=of the real shim\n"}
	if r := b.run("delete"); r.status != 42 || r.stderr != "of the real shim\n" {
		t.Errorf("status %d, errors %q", r.status, r.stderr)
	}
}

func TestWithoutARequestNothingChanges(t *testing.T) {
	t.Parallel()
	sandbox := podAnnotations("sandbox", "u1")
	interlock := `{"id":"` + allocation.InterlockDeviceID + `","idType":"` + allocation.InterlockDeviceType + `"}`
	windowsHost := `{"annotations":{"microsoft.com/hostprocess-container":"true"},"windows":{"devices":[` + interlock + `]}}`
	copied := podAnnotations("container", "u1") // from the pod, by pod_annotations
	copied["directx.microsoft.com/allocation.display"] = strings.Repeat("0", 32)
	for name, spec := range map[string]string{
		"no request":             standalone(),
		"requests none":          standalone("DIRECTX_VISIBLE_DEVICES=none"),
		"sandbox":                specOf(sandbox, "DIRECTX_VISIBLE_DEVICES=all"),
		"annotation of the pod":  specOf(copied),
		"host process":           windowsHost,
		"pod requests by itself": specOf(podAnnotations("container", "u1"), "DIRECTX_VISIBLE_DEVICES=all"),
		"our own DaemonSet":      specOf(podAnnotations("container", "u1"), "X=directx-nri"),
		"spaces, unknown field":  "{ \"a\" : 1,\n \"linux\":{} }\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			// The state of our files does not matter.
			for _, content := range []string{b.read("state/policy.json"), "{", ""} {
				b.write("state/policy.json", content)
				b.write("bundle/config.json", spec)
				before := b.stat("bundle/config.json")
				b.started(b.run("-namespace", "default", "-id", "c1", "start"))
				after := b.stat("bundle/config.json")
				if got := b.read("bundle/config.json"); got != spec || !os.SameFile(before, after) || before.ModTime() != after.ModTime() {
					t.Errorf("config.json was touched: %s", got)
				}
			}
		})
	}
}

func TestStandaloneStart(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	for _, request := range []string{"all", "0", "0xA0", `VMBUS\0`} {
		b.started(b.start(standalone("DIRECTX_VISIBLE_DEVICES=" + request)))
		b.hasGPU()
	}
	b.refused(b.start(standalone("DIRECTX_VISIBLE_DEVICES=1")), `"c1"`, "(Virtual GPU")
	if log := b.read("state/shim.log"); !strings.Contains(log, "missing.so") || !strings.Contains(log, "Container gets GPUs") {
		t.Errorf("the log does not report the missing file: %s", log)
	}
}

func TestEditsKeepModeAndAreDoneOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.write("bundle/config.json", standalone("DIRECTX_VISIBLE_DEVICES=all"))
	testutil.NoError(b.t, os.Chmod(b.path("bundle/config.json"), 0o646))
	b.started(b.run("-namespace", "default", "-id", "c1", "start"))
	first := b.stat("bundle/config.json")
	if first.Mode().Perm() != 0o646 {
		t.Errorf("mode %v", first.Mode())
	}
	b.started(b.run("-namespace", "default", "-id", "c1", "start"))
	if !os.SameFile(first, b.stat("bundle/config.json")) {
		t.Error("what was edited already is written again")
	}
	b.hasGPU()
	if files, err := os.ReadDir(b.path("bundle")); err != nil || len(files) != 1 {
		t.Errorf("files in the bundle: %v, %v", files, err)
	}
}

func TestPodStart(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	container := b.allocate()
	b.startedPod(b.startPod("u1", container, nil))
	b.startedPod(b.startPod("u1", container, nil)) // The next start of the same container.
	b.refused(b.startPod("u2", container, nil), "another container", `container "main" of pod default/web`)
	b.refused(b.startPod("u3", container, container), "which only the kubelet may set")
	b.refused(b.startPod("u3", nil, nil), "does not report which")
	b.refused(b.startPod("u3", map[string]string{"directx.microsoft.com/allocation.display": string(allocation.NewID())}, nil), "no allocation is recorded")
	b.refused(b.startPod("u1", container, map[string]string{"directx.microsoft.com/extra-mounts": `..\x`}), "extra mounts")
}

func TestRefusalIsLoggedInOneLine(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		shim, spec string
		says       []string
	}{
		"standalone":     {ourName, standalone("DIRECTX_VISIBLE_DEVICES=7"), []string{"container=c1", "reason=request"}},
		"pod":            {ourName, interlocked("u1"), []string{"container=main", "pod=default/web", "reason=slow"}},
		"no config.json": {ourName, "{", []string{"container=c1", "reason=other"}},
		"panic":          {brokenName, standalone("DIRECTX_VISIBLE_DEVICES=all"), []string{"internal error in directx-nri", "stack="}},
	} {
		b := newBed(t)
		b.shim = b.program("bin/" + test.shim)
		b.refused(b.start(test.spec))
		log := b.read("state/shim.log")
		if strings.Count(log, `level=error msg="Container refused"`) != 1 {
			t.Errorf("%s: %s", name, log)
		}
		for _, text := range append(test.says, "error=") {
			if !strings.Contains(log, text) {
				t.Errorf("%s: %s has no %s", name, log, text)
			}
		}
	}
}

// TestRealShimFails: the log has the reason of each start that fails, not only of refusals.
func TestRealShimFails(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	testutil.WriteFile(t, b.path("bin/"+realName), "no program", 0o700)
	r := b.start(standalone("A=B"))
	if log := b.read("state/shim.log"); !strings.Contains(log, "exec format error") {
		t.Errorf("logged %q", log)
	}
	if r.status != exitFailure || !strings.Contains(r.stderr, "exec format error") {
		t.Errorf("status %d: %s", r.status, r.stderr)
	}
}

func TestRequestOnABrokenNodeIsRefused(t *testing.T) {
	t.Parallel()
	request := standalone("DIRECTX_VISIBLE_DEVICES=all")
	for name, test := range map[string]struct {
		breaks func(*bed)
		says   []string
	}{
		"damaged policy": {func(b *bed) { b.write("state/policy.json", "{") }, []string{"policy.json"}},
		// The cause depends on this machine: it can have a /dev/dxg.
		"no inventory":                   {func(b *bed) { b.configure(func(p *policy.Policy) { p.UseInventory = false }) }, []string{"the GPUs of this node are unknown"}},
		"compiled inventory is missing":  {func(b *bed) { _ = os.Remove(b.path("state/devices.json")) }, []string{"devices.json"}},
		"compiled inventory is damaged":  {func(b *bed) { b.write("state/devices.json", "{}\n") }, []string{"devices.json", "dxctl config apply"}},
		"state directory is not private": {func(b *bed) { _ = os.Chmod(b.path("state"), 0o777) }, []string{"not private"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			test.breaks(b)
			b.refused(b.start(request), test.says...)
			if isPrivate := access.CheckPrivate(b.path("state")) == nil; durable.Exists(b.path("state/shim.log")) != isPrivate {
				t.Errorf("the state directory is private: %t, and a log was written or not", isPrivate)
			}
			b.started(b.start(standalone()))
			// A device of another kind can have a location path, too.
			b.started(b.start(`{"windows":{"devices":[{"id":"PCIROOT(0)#PCI(0200)","idType":"vpci-location-path"}]}}`))
		})
	}
}

// An image can set the variable: a node that ignores it starts the container as it is,
// also if nothing is known about its GPUs.
func TestIgnoredRequest(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.configure(func(p *policy.Policy) { p.UseInventory, p.Standalone.Environment = false, false })
	b.started(b.start(standalone("DIRECTX_VISIBLE_DEVICES=all")))
	if log := b.read("state/shim.log"); !strings.Contains(log, "has no effect") {
		t.Error(log)
	}
}

func TestConfigJSONThatCannotBeRead(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	for _, spec := range []string{"", "{", "null x", `{"process":{"env":["DIRECTX_VISIBLE`, `[1]`, `{"process":3,"a":"directx"}`, `{"annotations":{"directx.microsoft.com/x":1}}`} {
		b.refused(b.start(spec), "config.json: not an OCI runtime spec", `"c1"`)
	}
	// The runtimes ignore the case of keys.
	b.refused(b.start(`{"Linux":{},"process":{"env":["DIRECTX_VISIBLE_DEVICES=all"]}}`), "in another case")
	testutil.NoError(b.t, os.Remove(b.path("bundle/config.json")))
	b.started(b.run("-namespace", "default", "-id", "c1", "start"))
}

func TestRealShimIsFound(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.program("other/" + realName)
	testutil.NoError(b.t, os.Remove(b.path("bin/"+realName)))
	b.env = []string{"PATH="} // This machine may have one.
	for _, r := range []result{b.run("delete"), b.start(standalone())} {
		if r.status != exitFailure || r.stdout != "" || !strings.Contains(r.stderr, "is neither beside") || strings.Contains(r.stderr, "\n") {
			t.Errorf("status %d, output %q, errors %q", r.status, r.stdout, r.stderr)
		}
	}
	if log := b.read("state/shim.log"); strings.Count(log, "Container refused") != 1 {
		t.Errorf("the log of a start without a real shim:\n%s", log)
	}
	b.env = []string{"PATH=" + b.path("other")}
	b.passed(b.run("delete"), "delete")
}

// TestRecordVersion: the advertiser offers nothing while containerd does not run the shim
// for the containers of pods.
func TestRecordVersion(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	s := shim{program: b.shim, args: []string{"-id", "c1", "start"}, bundle: b.path("bundle"), stateDir: b.path("state")}
	for _, version := range []int{2, 3, 3, 4, 2, 2} {
		s.recordBypass("/real", version)
		want := ""
		if version >= 3 {
			want = "the real shim /real answers with bootstrap version 3"
		}
		testutil.CheckError(t, fmt.Sprint("version ", version), bypass.Check(b.path("state")), want)
	}
	b.write("bundle/config.json", specOf(podAnnotations("sandbox", "u1")))
	if err := s.editBundle(); err != nil || !isSandbox(s.config) {
		t.Errorf("the sandbox is not recognized: %v", err)
	}
}

func TestLogIsRotated(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		stuck         bool // it cannot be renamed, as when another start has it open on Windows
		before, after int64
	}{
		"small":                  {before: maxLogBytes, after: maxLogBytes + 5},
		"large":                  {before: maxLogBytes + 1, after: 5},
		"large, in use":          {stuck: true, before: maxLogBytes + 1, after: maxLogBytes + 6},
		"twice as large, in use": {stuck: true, before: 2*maxLogBytes + 1, after: 2*maxLogBytes + 1},
	} {
		path := filepath.Join(t.TempDir(), "shim.log")
		testutil.WriteFile(t, path, strings.Repeat("x", int(test.before)), 0o600)
		if test.stuck {
			testutil.NoError(t, os.MkdirAll(path+".1/x", 0o700))
		}
		l := &logFile{path: path}
		if n, err := l.Write([]byte("line\n")); n != 5 || err != nil {
			t.Errorf("%s: %d, %v", name, n, err)
		}
		_ = l.file.Close() // nil when the line was dropped
		if info, err := os.Stat(path); err != nil || info.Size() != test.after {
			t.Errorf("%s: %d bytes, want %d, %v", name, info.Size(), test.after, err)
		}
	}
	lost := &logFile{path: "/dev/null/x"}
	if n, err := lost.Write([]byte("line\n")); n != 5 || err != nil {
		t.Errorf("a log that cannot be written: %d, %v", n, err)
	}
}

func TestMainByHand(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	for flag, want := range map[string]string{
		shimfile.SelfTestFlag: shimfile.SelfTestPassed, "--help": "ctr run --runtime io.containerd.directx.v1", "--version": ourName + " test",
	} {
		if got := b.run(flag); got.status != 0 || !strings.Contains(got.stdout, want) {
			t.Errorf("%s: %+v", flag, got)
		}
	}
	b.env = []string{shimfile.SelfTestParent + "=" + b.path("none")}
	if got := b.run(shimfile.SelfTestFlag); got.status == 0 {
		t.Errorf("the self-test uses another directory: %+v", got)
	}
}

// TestKilledAtEachChange kills the shim before each system call that can change a file: the bundle
// is untouched or complete then, and the next start of the container works.
func TestKilledAtEachChange(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.shim = buildShim(t)
	service := &containerd{}
	socket := filepath.Join(testutil.ShortDir(t), "s")
	grpctest.Serve(t, socket, &runtime.RuntimeService_ServiceDesc, service)
	start := []string{"-namespace", "k8s.io", "-address", socket, "-id", "c1", "start"}
	before := interlocked("u1")
	var after string
	// Go's scheduler sometimes writes to wake a thread: the last run that is killed is not the longest.
	for n, unkilled := 0, 0; unkilled < 5; n++ {
		service.container = b.allocate()
		b.write("bundle/config.json", before)
		if n == 0 {
			b.killAt(-1, start)
			after = b.read("bundle/config.json")
			if after == before {
				t.Fatal("config.json is not edited")
			}
			continue
		}
		if !b.killAt(n, start) {
			unkilled++
		}
		if got := b.read("bundle/config.json"); got != before && got != after {
			t.Fatalf("killed at change %d: config.json is %s", n, got)
		}
		if r := b.run(start...); r.status != 0 || r.stderr != "" {
			t.Fatalf("the start after a kill at change %d: status %d, errors %q", n, r.status, r.stderr)
		}
		files, err := os.ReadDir(b.path("bundle"))
		files = slices.DeleteFunc(files, func(f os.DirEntry) bool { return durable.IsTemp(f.Name()) }) // containerd removes the bundle.
		if got := b.read("bundle/config.json"); got != after || err != nil || len(files) != 1 {
			t.Fatalf("the start after a kill at change %d left %v with %s, %v", n, files, got, err)
		}
	}
}

// buildShim builds the real program, which has fewer system calls than that of tests.
func buildShim(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), ourName)
	testutil.NoError(t, os.Symlink("/bin/true", filepath.Join(filepath.Dir(program), realName)))
	if out, err := exec.Command("go", "build", "-o", program, "github.com/directx-nri/directx-nri/cmd/containerd-shim-directx-v1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

// killAt runs a start and kills it before its n-th system call that can change a file. It returns
// false if the real shim was run before that.
func (b *bed) killAt(n int, args []string) (killed bool) {
	b.t.Helper()
	command := exec.Command(b.shim, args...)
	command.Dir = b.path("bundle")
	command.Env = append(os.Environ(), paths.StateDirVariable+"="+b.path("state"))
	changing := []uint64{
		syscall.SYS_OPENAT, syscall.SYS_WRITE, syscall.SYS_FCHMOD, syscall.SYS_FSYNC, syscall.SYS_LINKAT, syscall.SYS_RENAMEAT, syscall.SYS_UNLINKAT,
	}
	changes := 0
	_, err := testutil.Trace(command, func(_ int, call uint64) bool {
		if slices.Contains(changing, call) {
			changes++
		}
		killed = changes == n
		return killed
	})
	testutil.NoError(b.t, err)
	return killed
}
