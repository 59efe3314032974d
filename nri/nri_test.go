package nri

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/cri"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/metrics"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/allocationtest"
)

const (
	display = "directx.microsoft.com/display"
	compute = "directx.microsoft.com/compute"

	displayKey = "directx.microsoft.com/allocation.display"
	computeKey = "directx.microsoft.com/allocation.compute"
)

// nodeFiles has every file, and device nodes that are numbered by their names.
type nodeFiles struct{ hostfiles.Assumed }

func (nodeFiles) DeviceNode(path string) (specs.LinuxDevice, error) {
	if strings.Contains(path, "missing") {
		return specs.LinuxDevice{}, &fs.PathError{Op: "lstat", Path: path, Err: fs.ErrNotExist}
	}
	return specs.LinuxDevice{Path: path, Type: "c", Major: 10, Minor: int64(path[len(path)-1] - '0')}, nil
}

// hangingFiles announces each lookup of a device node, and answers when block is closed.
type hangingFiles struct {
	nodeFiles
	calls, block chan struct{}
}

func (f hangingFiles) DeviceNode(path string) (specs.LinuxDevice, error) {
	f.calls <- struct{}{}
	<-f.block
	return f.nodeFiles.DeviceNode(path)
}

func gpu(n string) discovery.Device {
	return discovery.Device{
		InstanceID: `VMBUS\` + n, SupportsDisplay: true,
		DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg" + n, ContainerPath: "/dev/dxg" + n}},
		Libraries:   []discovery.Library{{Source: "/lib/d3d12.so", Destination: "/usr/lib/wsl/lib/d3d12.so"}},
	}
}

// bed is a plugin on a node with these devices in its inventory, whose policy sets the level of the log to debug.
type bed struct {
	plugin *Plugin
	state  string
}

func newBed(t testing.TB, devices ...discovery.Device) *bed {
	t.Helper()
	state := filepath.Join(t.TempDir(), "state")
	nodePolicy := policy.Default()
	nodePolicy.UseInventory, nodePolicy.Log.Level = true, "debug"
	testutil.NoError(t, policy.Write(state, nodePolicy), node.CompiledInventory(state).Write(devices))
	p := NewPlugin(Config{Index: "50", StateDir: state, Files: nodeFiles{}, Metrics: metrics.New("p", "v"), Log: testutil.Quiet()})
	p.readRuntime = func(context.Context) (cri.Config, error) { return handlers(), nil }
	return &bed{p, state}
}

// handlers has one of runc, which is the default, and one of Kata Containers.
func handlers() cri.Config {
	return cri.Config{Default: "runc", Handlers: []cri.Handler{
		{Name: "kata", RuntimeType: "io.containerd.kata.v2"}, {Name: "runc", RuntimeType: "io.containerd.runc.v2"},
	}}
}

func TestRuntimeHandlers(t *testing.T) {
	t.Parallel()
	for handler, says := range map[string]string{ // the error, "" if the container gets its GPU
		"kata":      `runtime handler kata has runtime_type "io.containerd.kata.v2", not io.containerd.runc.v2`,
		"untrusted": `no runtime handler "untrusted"`,
		"runc":      "",
		"":          "",
	} {
		b := newBed(t, gpu("0"))
		pod := testPod()
		pod.RuntimeHandler = handler
		if handler == "untrusted" { // containerd does not tell plugins.
			pod.RuntimeHandler, pod.Annotations = "", map[string]string{"io.kubernetes.cri.untrusted-workload": "true"}
		}
		if got, err := b.adjust(pod, testContainer()); got != nil || err != nil {
			t.Errorf("a container without a request gets %v, error %v", got, err)
		}
		got, err := b.adjust(pod, testContainer(displayKey+"="+b.allocate(t, display, "0")))
		testutil.CheckError(t, "adjust", err, says)
		refusals := promtest.ToFloat64(b.plugin.config.Metrics.Refusals.WithLabelValues(string(decision.ReasonHandler)))
		if (got == nil) != (err != nil) || (refusals == 1) != (err != nil) {
			t.Errorf("%s: got %v, error %v, %v refusals", handler, got, err, refusals)
		}
	}
}

// adjust returns the plugin's answer for a container.
func (b *bed) adjust(pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, error) {
	return b.plugin.createContainer(context.Background(), handlers(), pod, container)
}

// allocate records GPUs, by their number, and returns the ID of the record.
func (b *bed) allocate(t testing.TB, resource string, gpus ...string) string {
	t.Helper()
	for i, n := range gpus {
		gpus[i] = `VMBUS\` + n
	}
	return string(allocationtest.Record(t, paths.Allocations(b.state), resource, gpus...))
}

func testPod() *api.PodSandbox {
	return &api.PodSandbox{Id: "sandbox-1", Name: "web", Namespace: "default", Uid: "uid-1"}
}

// testContainer returns a container with these annotations, as KEY=VALUE. If there are any, it has the interlock.
func testContainer(annotations ...string) *api.Container {
	c := &api.Container{
		Id: "container-1", PodSandboxId: "sandbox-1", Name: "main", Env: []string{"PATH=/bin"},
		Annotations: map[string]string{}, Mounts: []*api.Mount{{Destination: "/proc"}},
	}
	for _, annotation := range annotations {
		key, value, _ := strings.Cut(annotation, "=")
		c.Annotations[key] = value
	}
	if len(annotations) > 0 {
		c.Mounts = append(c.Mounts, &api.Mount{Destination: allocation.InterlockMount, Source: allocation.InterlockSource})
	}
	return c
}

func devicePaths(a *api.ContainerAdjustment) []string {
	var paths []string
	for _, d := range a.GetLinux().GetDevices() {
		paths = append(paths, d.GetPath())
	}
	return paths
}

func TestAdjustGivesWhatWasAllocated(t *testing.T) {
	t.Parallel()
	b := newBed(t, gpu("0"), gpu("1"), gpu("2"))
	container := testContainer(displayKey+"="+b.allocate(t, display, "0"), computeKey+"="+b.allocate(t, compute, "2"))
	for range 2 { // again, as after a restart of the container
		got, err := b.adjust(testPod(), container)
		testutil.NoError(t, err)
		if diff := cmp.Diff([]string{"/dev/dxg2", "/dev/dxg0"}, devicePaths(got)); diff != "" {
			t.Errorf("devices (-want +got):\n%s", diff)
		}
		var mounts []string
		for _, m := range got.GetMounts() {
			mounts = append(mounts, m.GetDestination())
		}
		if diff := cmp.Diff([]string{"-" + allocation.InterlockMount, "/usr/lib/wsl/lib/d3d12.so"}, mounts); diff != "" {
			t.Errorf("mounts (-want +got):\n%s", diff)
		}
	}
}

// TestAdjustRefuses has what the plugin adds to a decision: what it reads of the container and its pod, and
// the device nodes.
func TestAdjustRefuses(t *testing.T) {
	t.Parallel()
	noNode := gpu("4")
	noNode.DeviceNodes[0].Path = "/dev/missing"
	b := newBed(t, gpu("0"), noNode)
	own := displayKey + "=" + b.allocate(t, display, "0")
	for says, test := range map[string]struct {
		annotation, ofPod string // KEY=VALUE, and a key
	}{
		"no allocation is recorded": {annotation: displayKey + "=" + string(allocation.NewID())},
		"does not report which":     {annotation: "a=b"},
		"/dev/missing":              {annotation: displayKey + "=" + b.allocate(t, display, "4")},
		"remove it from the pod":    {annotation: own, ofPod: displayKey},
	} {
		pod := testPod()
		pod.Annotations = map[string]string{test.ofPod: ""}
		got, err := b.adjust(pod, testContainer(test.annotation))
		testutil.CheckError(t, "adjust", err, says)
		if text := errlog.Text(err); got != nil || !strings.Contains(text, `container "main" of pod default/web`) || strings.Contains(text, "\n") {
			t.Errorf("%s: got %v, error %q", says, got, text)
		}
	}
	if _, err := b.adjust(testPod(), testContainer(own)); err != nil {
		t.Errorf("a refused container has taken the allocation: %v", err)
	}
}

// TestHungHookRefusesTheNextAtOnce: the runtime calls one hook at a time, so each
// time-out delays containers that request nothing.
func TestHungHookRefusesTheNextAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, gpu("0"))
		files := hangingFiles{calls: make(chan struct{}, 4), block: make(chan struct{})}
		b.plugin.config.Files = files
		p := b.plugin
		container := testContainer(displayKey + "=" + b.allocate(t, display, "0"))
		begin := time.Now()
		for i, want := range []error{errTooSlow, errOverdue, errOverdue} {
			_, err := b.adjust(testPod(), container)
			if !errors.Is(err, want) || !strings.Contains(err.Error(), `container "main" of pod default/web`) {
				t.Errorf("container %d: error %v, want %v", i, err, want)
			}
			if err := p.CheckAlive(); !errors.Is(err, errOverdue) {
				t.Errorf("after container %d, alive: %v", i, err)
			}
		}
		if took := time.Since(begin); took != hookTimeout {
			t.Errorf("the three hooks took %s, want %s", took, hookTimeout)
		}
		if n := len(files.calls); n != 1 {
			t.Errorf("%d workers were started, want 1", n)
		}
		close(files.block)
		testutil.Eventually(t, "recovery", func() bool { return p.CheckAlive() == nil })
		if _, err := b.adjust(testPod(), container); errors.Is(err, errTooSlow) || errors.Is(err, errOverdue) {
			t.Errorf("after recovery: %v", err)
		}
	})
}

// TestNoRequestDependsOnNothing: a container that requests nothing is neither
// refused nor counted as refused, and reads no file.
func TestNoRequestDependsOnNothing(t *testing.T) {
	t.Parallel()
	p := newBed(t).plugin
	p.overdue.Add(1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	container := testContainer()
	container.Env = []string{"DIRECTX_VISIBLE_DEVICES=all", "DIRECTX_ALLOCATION_DISPLAY=" + string(allocation.NewID())}
	container.Annotations = map[string]string{"directx.microsoft.com/visible-devices": "all", displayKey: string(allocation.NewID())} // handed on
	container.Mounts = append(container.Mounts, &api.Mount{Destination: allocation.InterlockMount, Source: "/volume"})
	pod := testPod()
	pod.Annotations = map[string]string{"directx.microsoft.com/extra-mounts": "/etc"}
	for range 2 {
		if a, err := p.createContainer(ctx, handlers(), pod, container); a != nil || err != nil {
			t.Fatalf("%v, %v", a, err)
		}
	}
	if p.config.Log.GetLevel() == logrus.DebugLevel {
		t.Error("the policy was read")
	}
	if n := promtest.CollectAndCount(p.config.Metrics.Refusals); n > 0 {
		t.Errorf("%d reasons of refusals", n)
	}
}

// TestNoDecisionRefusesTheContainer: without a policy, and after a panic, which the plugin survives.
func TestNoDecisionRefusesTheContainer(t *testing.T) {
	t.Parallel()
	for says, breaks := range map[string]func(*bed){
		"read node policy":                func(b *bed) { testutil.WriteFile(t, policy.Path(b.state), "{", 0o600) },
		errlog.ErrInternal.Error() + ": ": func(b *bed) { b.plugin.config.Files = nil },
	} {
		b := newBed(t, gpu("0"))
		breaks(b)
		container := testContainer(displayKey + "=" + b.allocate(t, display, "0"))
		for range 2 {
			_, _, err := newSessionHooks(b.plugin, handlers()).CreateContainer(t.Context(), testPod(), container)
			testutil.CheckError(t, "CreateContainer", err, `container "main" of pod default/web is not started: `+says)
			testutil.CheckError(t, "CreateContainer with a remedy", err, "; run 'dxctl ")
		}
		testutil.NoError(t, b.plugin.CheckAlive())
	}
}

func TestRefusalIsLoggedAndCountedOnce(t *testing.T) {
	t.Parallel()
	log, logged := logtest.NewNullLogger()
	b := newBed(t)
	b.plugin.config.Log = log
	_, err := b.adjust(testPod(), testContainer(displayKey+"=0123456789abcdef0123456789abcdef"))
	if err == nil || len(logged.AllEntries()) != 1 {
		t.Fatalf("error %v, logged %v", err, logged.AllEntries())
	}
	entry := logged.LastEntry()
	want := logrus.Fields{"pod": "default/web", "container": "main", "reason": "no_record", "error": err}
	if entry.Level != logrus.ErrorLevel || entry.Message != "Container refused" || !maps.Equal(entry.Data, want) {
		t.Errorf("logged %v", entry)
	}
	if n := promtest.ToFloat64(b.plugin.config.Metrics.Refusals.WithLabelValues("no_record")); n != 1 {
		t.Errorf("%v refusals", n)
	}
	if n := promtest.CollectAndCount(b.plugin.config.Metrics.Hooks); n != 1 {
		t.Errorf("%d hooks", n)
	}
}
