package simulate

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"directx-nri/advertiser/resources"
	"directx-nri/discovery"
	"directx-nri/discovery/inventory"
	"directx-nri/internal/config"
	"directx-nri/internal/hostfiles"
	"directx-nri/internal/testutil"
	"directx-nri/ocispec"
)

// gpus is a source of devices that do not change.
type gpus []discovery.Device

// Devices implements [discovery.Source].
func (g gpus) Devices(context.Context) ([]discovery.Device, error) { return g, nil }

// Watch implements [discovery.Source].
func (gpus) Watch(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }

// twoGPUsAndANPU are two display GPUs of one driver, and a compute-only device.
func twoGPUsAndANPU() gpus {
	display := discovery.Device{
		InstanceID: `PCI\A`, Description: "GPU A", LocationPath: "PCIROOT(0)#PCI(0100)", SupportsDisplay: true, SupportsCompute: true,
		DriverStorePath: `C:\Windows\System32\DriverStore\FileRepository\a`, System32: []discovery.RuntimeFile{{Source: "x64.dll", Destination: "x.dll"}},
	}
	second := display.Clone()
	second.InstanceID, second.Description, second.LocationPath = `PCI\B`, "GPU B", "PCIROOT(0)#PCI(0200)"
	npu := discovery.Device{InstanceID: `PCI\N`, Description: "NPU", LocationPath: "PCIROOT(0)#PCI(0300)", SupportsCompute: true}
	return gpus{display, second, npu}
}

// configured returns the configuration that text is, but for its head.
func configured(t *testing.T, text string) config.Config {
	t.Helper()
	c, err := config.Parse([]byte("apiVersion: " + config.APIVersion + "\nkind: " + config.Kind + "\n" + text + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func simulate(t *testing.T, node Node, text string, count int) Report {
	t.Helper()
	if node.Source == nil {
		node.Source = twoGPUsAndANPU()
	}
	if node.Config.Resources == nil {
		node.Config = configured(t, "replicas: 2")
	}
	workloads, _, err := Read(strings.NewReader(text), resources.Names(node.Config.Resources)...)
	if err != nil {
		t.Fatal(err)
	}
	report, err := Run(t.Context(), node, workloads, count)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// told returns each container as "pod/container state: replicas", and each pod
// that has none as "pod state".
func told(r Report) []string {
	var lines []string
	for _, p := range r.Pods {
		if len(p.Containers) == 0 {
			lines = append(lines, p.Name+" "+p.State)
		}
		for _, c := range p.Containers {
			line := fmt.Sprintf("%s/%s %s:", p.Name, c.Name, c.State)
			for _, a := range c.Allocations {
				for _, replica := range a.Replicas {
					line += " " + strings.TrimPrefix(replica.ID, `PCI\`)
				}
			}
			lines = append(lines, line)
		}
	}
	return lines
}

const (
	oneDisplay = `{limits: {directx.microsoft.com/display: "1"}}`
	oneCompute = `{limits: {directx.microsoft.com/compute: "1"}}`
)

// podOf returns a manifest of a pod with this spec.
func podOf(spec string) string {
	return "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: " + spec + "}"
}

func TestWhoGetsWhat(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text  string
		count int
		want  []string
	}{
		"one GPU":                {podText("a", oneDisplay), 0, []string{"a/main starts: A::0"}},
		"nothing":                {podText("a", ""), 0, []string{"a/main starts:"}},
		"none, said so":          {podText("a", `{limits: {directx.microsoft.com/display: 0}}`), 0, []string{"a/main starts:"}},
		"other resources":        {podText("a", `{limits: {cpu: 100m, nvidia.com/gpu: 8}}`), 0, []string{"a/main starts:"}},
		"two GPUs":               {podText("a", `{limits: {directx.microsoft.com/display: 2}}`), 0, []string{"a/main starts: A::0 B::0"}},
		"both resources":         {podText("a", `{limits: {directx.microsoft.com/display: 1, directx.microsoft.com/compute: 1}}`), 0, []string{"a/main starts: N::0 A::0"}},
		"the fifth of four":      {podText("a", oneDisplay), 5, []string{"a-1/main starts: A::0", "a-2/main starts: B::0", "a-3/main starts: A::1", "a-4/main starts: B::1", "a-5 pending"}},
		"more than there are":    {podText("a", `{limits: {directx.microsoft.com/display: 5}}`), 0, []string{"a pending"}},
		"no such resource":       {podText("a", `{limits: {directx.microsoft.com/gpu: 1}}`), 0, []string{"a pending"}},
		"two containers":         {podOf("{containers: [{name: x, resources: " + oneDisplay + "}, {name: z, resources: " + oneDisplay + "}]}"), 0, []string{"a/x starts: A::0", "a/z starts: B::0"}},
		"an init container's":    {podOf("{initContainers: [{name: i, resources: " + oneDisplay + "}], containers: [{name: x, resources: " + oneDisplay + "}]}"), 0, []string{"a/i starts: A::0", "a/x starts: A::0"}},
		"an init container more": {podOf("{initContainers: [{name: i, resources: " + oneDisplay + "}], containers: [{name: x, resources: {limits: {directx.microsoft.com/display: 2}}}]}"), 0, []string{"a/i starts: A::0", "a/x starts: A::0 B::0"}},
		"a sidecar keeps its own": {podOf("{initContainers: [{name: s, restartPolicy: Always, resources: " + oneDisplay + "}], containers: [{name: x, resources: " + oneDisplay + "}]}"), 0,
			[]string{"a/s starts: A::0", "a/x starts: B::0"}},
		"a pod that waits holds nothing": {podText("a", `{limits: {directx.microsoft.com/display: 3, directx.microsoft.com/compute: 3}}`) + "\n---\n" + podText("b", `{limits: {directx.microsoft.com/display: 4}}`), 0,
			[]string{"a pending", "b/main starts: A::0 A::1 B::0 B::1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, told(simulate(t, Node{}, test.text, test.count))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhyAPodDoesNotRun(t *testing.T) {
	t.Parallel()
	const forged = "{name: DIRECTX_ALLOCATION_DISPLAY, value: 0123456789abcdef0123456789abcdef}"
	sick := twoGPUsAndANPU()[:1]
	sick[0].Health.Reason = "driver is not started (code 10)"
	for name, test := range map[string]struct {
		node  Node
		text  string
		state string
		want  []string // in the pod's JSON
	}{
		"too many": {Node{}, podText("a", `{limits: {directx.microsoft.com/display: 5}}`), StatePending,
			[]string{"0/1 nodes are available: 1 Insufficient directx.microsoft.com/display.", "asks for 5 of directx.microsoft.com/display, and all of the node is 4"}},
		"too many of both": {Node{}, podText("a", `{limits: {directx.microsoft.com/display: 5, directx.microsoft.com/compute: 3}}`), StatePending,
			[]string{"1 Insufficient directx.microsoft.com/compute, 1 Insufficient directx.microsoft.com/display."}},
		"a resource that is none": {Node{}, podText("a", `{limits: {directx.microsoft.com/gpu: 1}}`), StatePending,
			[]string{"1 Insufficient directx.microsoft.com/gpu", "there is no resource directx.microsoft.com/gpu: ask for directx.microsoft.com/display"}},
		"a GPU with a fault": {Node{Source: sick}, podText("a", oneDisplay), StatePending, []string{"1 Insufficient directx.microsoft.com/display"}},
		"none of a resource without a healthy device": {Node{Source: sick}, podText("a", `{limits: {directx.microsoft.com/display: 0}}`), StateRejected,
			[]string{"UnexpectedAdmissionError: Allocate failed due to container \\\"main\\\": no healthy devices present"}},
		"another node's": {Node{OS: ocispec.Windows}, podOf("{nodeSelector: {kubernetes.io/os: linux}, containers: [{name: x}]}"), StatePending,
			[]string{"1 node(s) didn't match Pod's node affinity/selector"}},
		"another system's": {Node{OS: ocispec.Windows}, podOf("{os: {name: linux}, containers: [{name: x}]}"), StateRejected, []string{"PodOSNotSupported"}},
		"no system of ours": {Node{}, podOf("{nodeSelector: {kubernetes.io/os: plan9}, containers: [{name: x}]}"), StatePending,
			[]string{"didn't match"}},
		"a forged token": {Node{}, podOf("{containers: [{name: x, env: [" + forged + "]}]}"), StateRefused,
			[]string{"no allocation is recorded for this token", `C:\\ProgramData\\directx-nri\\allocations\\`, "remove variables that begin with DIRECTX_ALLOCATION"}},
		"a token that hides the real one": {Node{}, podOf("{containers: [{name: x, env: [" + forged + "], resources: " + oneDisplay + "}]}"), StateRefused,
			[]string{"directx.microsoft.com/display was allocated, and the container sets DIRECTX_ALLOCATION_DISPLAY itself"}},
		"a token from elsewhere": {Node{}, podOf("{containers: [{name: x, env: [{name: DIRECTX_ALLOCATION, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}]}"), StateRefused,
			[]string{"not an allocation token"}},
		"a GPU of Windows for a pod of Linux": {Node{}, podOf("{os: {name: linux}, containers: [{name: x, resources: " + oneDisplay + "}]}"), StateRefused,
			[]string{"the device cannot be given to a container"}},
		"an init container that does not start": {Node{}, podOf("{initContainers: [{name: i, env: [" + forged + "]}], containers: [{name: x}]}"), StateRefused,
			[]string{`"name":"x","kind":"container","state":"waits","reason":"init container \"i\" does not start"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := simulate(t, test.node, test.text, 0)
			text, err := json.Marshal(report.Pods[0])
			if err != nil {
				t.Fatal(err)
			}
			if report.Pods[0].State != test.state || report.Failed() != 1 {
				t.Errorf("%s, %d failed", report.Pods[0].State, report.Failed())
			}
			for _, want := range test.want {
				if !strings.Contains(string(text), want) {
					t.Errorf("no %s in\n%s", want, text)
				}
			}
		})
	}
}

// only returns the single container of a report.
func only(t *testing.T, r Report) Container {
	t.Helper()
	if len(r.Pods) != 1 || len(r.Pods[0].Containers) != 1 {
		t.Fatalf("%+v", r)
	}
	return r.Pods[0].Containers[0]
}

func TestSpecs(t *testing.T) {
	t.Parallel()
	linux := discovery.Device{InstanceID: "dxg", SupportsDisplay: true, DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg", ContainerPath: "/dev/dxg"}},
		Libraries: []discovery.Library{{Source: "/usr/lib/wsl/lib/libdxcore.so", Destination: "/usr/lib/wsl/lib/libdxcore.so"}}}
	for name, test := range map[string]struct {
		source discovery.Source
		spec   string
		want   []string // in the spec after
		not    []string
	}{
		"Windows": {nil, "{containers: [{name: x, command: [a.exe], args: [b], resources: " + oneDisplay + "}]}",
			[]string{`"args":["a.exe","b"]`, `{"id":"PCIROOT(0)#PCI(0100)","idType":"vpci-location-path"}`, `"destination":"C:\\Windows\\System32\\x.dll"`, `DIRECTX_ALLOCATION_DISPLAY=TOKEN-1`, `"MARK-1"`}, nil},
		"Linux": {gpus{linux}, "{containers: [{name: x, resources: " + oneDisplay + "}]}",
			[]string{`"path":"/dev/dxg"`, `"destination":"/usr/lib/wsl/lib/libdxcore.so"`, `DIRECTX_ALLOCATION_DISPLAY=TOKEN-1`}, []string{"windows"}},
		"the pod's own mount wins": {nil, `{volumes: [{name: v, hostPath: {path: 'D:\mine'}}, {name: e, emptyDir: {}}], containers: [{name: x, resources: ` + oneDisplay +
			`, volumeMounts: [{name: v, mountPath: /Windows/System32/x.dll, readOnly: true}, {name: e, mountPath: scratch}]}]}`,
			[]string{`"destination":"C:\\Windows\\System32\\x.dll","source":"D:\\mine","options":["ro"]`, `"destination":"C:\\scratch"`, "vpci-location-path"}, []string{"x64.dll"}},
		"the pod's own variable counts": {nil, "{containers: [{name: x, env: [{name: A, value: '1'}, {name: A, value: '2'}]}]}", []string{`"env":["A=2"]`}, []string{"A=1"}},
		"a request by variable is none": {nil, "{containers: [{name: x, env: [{name: DIRECTX_VISIBLE_DEVICES, value: all}]}]}", []string{"DIRECTX_VISIBLE_DEVICES=all"}, []string{"vpci", "mounts"}},
		"a host process": {nil, "{securityContext: {windowsOptions: {hostProcess: true}}, containers: [{name: x, resources: " + oneDisplay + "}]}",
			[]string{`"microsoft.com/hostprocess-container":"true"`, "TOKEN-1"}, []string{"vpci"}},
		"a container that is none": {nil, "{securityContext: {windowsOptions: {hostProcess: true}}, containers: [{name: x, securityContext: {windowsOptions: {hostProcess: false}}, resources: " + oneDisplay + "}]}",
			[]string{"vpci"}, []string{"hostprocess"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := only(t, simulate(t, Node{Source: test.source}, podOf(test.spec), 0))
			for _, want := range test.want {
				if !strings.Contains(string(c.After), want) {
					t.Errorf("no %s in\n%s", want, c.After)
				}
			}
			for _, not := range test.not {
				if strings.Contains(string(c.After), not) {
					t.Errorf("%s in\n%s", not, c.After)
				}
			}
			if asks := len(c.Allocations) > 0; !asks && string(c.Before) != string(c.After) {
				t.Errorf("who asks for nothing is changed: %s\n%s", c.Before, c.After)
			}
		})
	}
}

func TestNotes(t *testing.T) {
	t.Parallel()
	report := simulate(t, Node{}, podOf("{runtimeClassName: hyperv, resourceClaims: [{name: r}], containers: [{name: x, envFrom: [{configMapRef: {name: c}}], resources: "+oneDisplay+"}]}"), 0)
	text := strings.Join(slices.Concat(report.Pods[0].Notes, only(t, report).Notes), "\n")
	for _, want := range []string{"runtimeClassName hyperv is not looked at", "resourceClaims", "envFrom"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
	others := simulate(t, Node{}, podOf("{containers: [{name: x, resources: {limits: {cpu: 1, example.com/t4: 1}}}]}"), 0)
	if notes := others.Pods[0].Notes; len(notes) != 1 || !strings.Contains(notes[0], "example.com/t4 is taken for somebody else's") {
		t.Errorf("%q", notes)
	}
	host := simulate(t, Node{}, podOf("{containers: [{name: x, securityContext: {windowsOptions: {hostProcess: true}}}]}"), 0)
	if notes := only(t, host).Notes; len(notes) != 1 || !strings.Contains(notes[0], "process of the host") {
		t.Errorf("%q", notes)
	}
}

// missing has no file.
type missing struct{ hostfiles.Assumed }

// Resolve implements [ocispec.Files].
func (missing) Resolve(string) (string, error) { return "", fs.ErrNotExist }

// DeviceNode implements [ocispec.Files].
func (missing) DeviceNode(string) (specs.LinuxDevice, error) {
	return specs.LinuxDevice{}, fs.ErrNotExist
}

func TestRealFilesAreLookedAt(t *testing.T) {
	t.Parallel()
	c := only(t, simulate(t, Node{Files: missing{}}, podText("a", oneDisplay), 0))
	if len(c.Notes) != 1 || !strings.Contains(c.Notes[0], "x64.dll") || strings.Contains(string(c.After), "x.dll") {
		t.Errorf("%q, %s", c.Notes, c.After)
	}
}

func TestAGPUWithAFaultIsToldOf(t *testing.T) {
	t.Parallel()
	source := twoGPUsAndANPU()
	source[0].Health.Reason = "driver is not started (code 10)"
	report := simulate(t, Node{Source: source}, podText("a", oneDisplay), 0)
	if r := report.Resources[0]; r.Allocatable != 2 || len(r.GPUs) != 2 || !strings.Contains(r.GPUs[0].Health, "code 10") || r.GPUs[1].Health != "healthy" {
		t.Errorf("%+v", r)
	}
	if len(report.Notes) != 1 || !strings.Contains(report.Notes[0], "code 10") {
		t.Errorf("%q", report.Notes)
	}
	if diff := cmp.Diff([]string{"a/main starts: B::0"}, told(report)); diff != "" {
		t.Error(diff)
	}
}

// Two runs say the same, and leave nothing behind.
func TestSameEveryTime(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	t.Setenv("TMP", folder)
	text := podText("a", oneDisplay) + "\n---\n" + podText("b", `{limits: {directx.microsoft.com/display: 1, directx.microsoft.com/compute: 1}}`)
	var runs []string
	for range 2 {
		report, err := json.Marshal(simulate(t, Node{}, text, 2))
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, string(report))
	}
	if diff := cmp.Diff(runs[0], runs[1]); diff != "" {
		t.Errorf("(-first +second):\n%s", diff)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	workloads, _, err := Read(strings.NewReader(podText("a", oneDisplay)))
	if err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(t.TempDir(), "gpus.yaml")
	if err := os.WriteFile(bad, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), Node{Source: inventory.Open(bad, testutil.Quiet()), Config: config.Default()}, workloads, 0); err == nil || !strings.Contains(err.Error(), bad) {
		t.Errorf("a bad inventory: %v", err)
	}
	if _, err := Run(t.Context(), Node{Source: gpus{}}, workloads, 0); err == nil {
		t.Error("no replicas were taken")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, Node{Source: gpus{}, Config: config.Default()}, workloads, 0); err == nil {
		t.Error("went on although its context had ended")
	}
}
