//go:build unix

package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/advertiser/resources"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/readiness"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/allocationtest"
	"github.com/directx-nri/directx-nri/internal/testutil/grpctest"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// doubles is a node whose other programs are test doubles.
type doubles struct {
	*testing.T
	doctorOptions

	dir         string
	pluginReady error
}

// containerd is a test double of containerd's CRI server.
type containerd struct {
	runtime.UnimplementedRuntimeServiceServer
}

func (containerd) Version(context.Context, *runtime.VersionRequest) (*runtime.VersionResponse, error) {
	return &runtime.VersionResponse{RuntimeVersion: "v2.4.2"}, nil
}

func (containerd) Status(context.Context, *runtime.StatusRequest) (*runtime.StatusResponse, error) {
	config := `{"containerd":{"runtimes":{"runc":{"runtimeType":"io.containerd.runc.v2"}}}}`
	return &runtime.StatusResponse{Info: map[string]string{"config": config}}, nil
}

const doubleGPU = `apiVersion: directx.microsoft.com/v1alpha1
kind: Inventory
devices:
- {instanceID: GPU-0, description: Tesla T4, display: true, linux: {deviceNodes: [/dev/null]}}
- {instanceID: NONE, description: Basic Render Driver}
`

// newDoubles returns a node with one GPU and a configuration.
func newDoubles(t *testing.T) *doubles {
	t.Helper()
	dir := testutil.ShortDir(t)
	d := &doubles{T: t, dir: dir, doctorOptions: emptyNode(dir)}
	d.write("gpus.yaml", doubleGPU)
	d.configure("")
	return d
}

func (d *doubles) write(name, text string) {
	testutil.WriteFile(d, filepath.Join(d.dir, name), text, 0o700)
}

func (d *doubles) configure(more string) {
	d.write("config.yaml", configHead+"inventory: "+filepath.Join(d.dir, "gpus.yaml")+"\n"+more)
	apply(d.T, filepath.Join(d.dir, "config.yaml"), d.stateDir)
}

func (d *doubles) listen(path string) {
	listener, err := net.Listen("unix", path)
	testutil.NoError(d, err)
	d.Cleanup(func() { _ = listener.Close() })
}

// serveCRI serves containerd's socket, which has another service without the CRI plugin.
func (d *doubles) serveCRI(service *grpc.ServiceDesc, server any) {
	grpctest.Serve(d, d.criSocket, service, server)
}

// newKubernetesNode returns a node with all that Kubernetes needs.
func newKubernetesNode(t *testing.T) *doubles {
	t.Helper()
	d := newDoubles(t)
	d.serveCRI(&runtime.RuntimeService_ServiceDesc, containerd{})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- readiness.Serve(ctx, d.runtimeDir, func(context.Context) error { return d.pluginReady }, testutil.Quiet())
	}()
	t.Cleanup(func() { cancel(); testutil.NoError(t, <-ended) })
	testutil.Eventually(t, "the plugin", func() bool { return readiness.CheckPlugin(t.Context(), d.runtimeDir) == nil })
	testutil.NoError(t, os.Mkdir(d.kubeletDir, 0o700))
	d.listen(filepath.Join(d.kubeletDir, "kubelet.sock"))
	d.listen(filepath.Join(d.kubeletDir, paths.SocketName(displays)))
	return d
}

// check runs the checks and returns their names, those that failed with their texts, and those that were not performed.
func (d *doubles) check() (names, failures, unknown []string) {
	for _, f := range runChecks(d.Context(), readNode(d.Context(), d.doctorOptions), checks(), d.timeout) {
		names = append(names, f.check)
		switch f.mark {
		case markFailed:
			failures = append(failures, f.check+": "+f.text)
		case markUnknown:
			unknown = append(unknown, f.check)
		case markPassed:
		}
	}
	return names, failures, unknown
}

// A node that works passes, in each set-up, the checks of its parts.
func TestSetups(t *testing.T) {
	t.Parallel()
	shim := func(d *doubles) { d.write(shimfile.FileName(), "#!/bin/sh\necho "+shimfile.BaseName+" 1.0\n") }
	for name, test := range map[string]struct {
		new  func(*testing.T) *doubles
		with func(*doubles)
		want string
	}{
		"Kubernetes": {newKubernetesNode, func(*doubles) {}, "system policy config gpu containerd nri kubelet advertiser records"},
		"Kubernetes and CDI": {newKubernetesNode, func(d *doubles) { d.write("cdi.yaml", "") },
			"system policy config gpu containerd nri kubelet advertiser records"},
		"kubelet injection": {newKubernetesNode, func(d *doubles) { d.configure("injection: kubelet\n") },
			"system policy config gpu containerd kubelet advertiser records"},
		"standalone": {newDoubles, func(d *doubles) {
			shim(d)
			d.serveCRI(&runtime.RuntimeService_ServiceDesc, containerd{})
		}, "system policy config gpu containerd shim records"},
		"standalone without CRI": {newDoubles, func(d *doubles) {
			shim(d)
			d.serveCRI(&runtime.ImageService_ServiceDesc, runtime.UnimplementedImageServiceServer{})
		}, "system policy config gpu containerd shim records"},
		"CDI": {newDoubles, func(d *doubles) { d.write("cdi.yaml", "") }, "system policy config gpu cdi records"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := test.new(t)
			test.with(d)
			names, failures, unknown := d.check()
			if got := strings.Join(names, " "); got != test.want || len(failures)+len(unknown) > 0 {
				t.Errorf("%s; failures %q, unknown %q", got, failures, unknown)
			}
		})
	}
	// A kubelet without our advertiser, which would have written a policy.
	d := newDoubles(t)
	d.write("cdi.service", "") // It has removed the specification.
	testutil.NoError(t, os.Mkdir(d.kubeletDir, 0o700), os.Remove(policy.Path(d.stateDir)))
	n := nodeState{doctorOptions: d.doctorOptions}
	if f := checkCDI(t.Context(), n); n.setup() != setupCDI || f[0].mark != markFailed {
		t.Errorf("%s %v", n.setup(), f)
	}
}

// Status reports that no GPU is allocated only where the records show that.
func TestNoGPUIsAllocated(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		with func(*doubles)
		want bool
	}{
		"no records":        {func(*doubles) {}, true},
		"kubelet injection": {func(d *doubles) { d.configure("injection: kubelet\n") }, false},
		"no directory":      {func(d *doubles) { testutil.WriteFile(d, paths.Allocations(d.stateDir), "", 0o600) }, false},
		"a record is unreadable": {func(d *doubles) {
			id := allocationtest.Record(d.T, paths.Allocations(d.stateDir), displays, "GPU-0")
			testutil.WriteFile(d, filepath.Join(paths.Allocations(d.stateDir), string(id)+".json"), "{", 0o600)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newKubernetesNode(t)
			test.with(d)
			var got strings.Builder
			printStatus(t.Context(), &got, readNode(t.Context(), d.doctorOptions), nil)
			if strings.Contains(got.String(), "no GPU is allocated") != test.want {
				t.Error(got.String())
			}
		})
	}
}

// The page on troubleshooting shows what is printed on a node on which the plugin does not run.
func TestDoctorSample(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/troubleshooting.md")
	testutil.NoError(t, err)
	_, want, _ := strings.Cut(string(page), "\n# dxctl status\n")
	want, _, _ = strings.Cut(want, "# dxctl doctor --report")
	d := newKubernetesNode(t)
	d.version, d.runtimeDir = "v0.2.0", filepath.Join(d.dir, "none")
	const gpu = `PCI\VEN_10DE&DEV_2786&SUBSYS_16F110DE&REV_A1\0`
	text, _, _ := strings.Cut(strings.NewReplacer("GPU-0", "'"+gpu+"'", "Tesla T4", "NVIDIA GeForce RTX 4070").Replace(doubleGPU), "- {instanceID: NONE")
	d.write("gpus.yaml", text)
	d.configure("")
	records := paths.Allocations(d.stateDir)
	holder := allocation.Holder{PodUID: "uid", Container: "main", PodNamespace: "default", PodName: "game"}
	allocationtest.Bind(t, records, allocationtest.Record(t, records, displays, gpu), holder)
	var got strings.Builder
	d.isStatus = true
	testutil.CheckError(t, "status", d.run(t.Context(), &got, &got), "this node has problems")
	got.WriteString("# dxctl doctor\n")
	printFindings(&got, runChecks(t.Context(), readNode(t.Context(), d.doctorOptions), checks(), d.timeout))
	// What differs by machine.
	mask := regexp.MustCompile(`main  +\w+|kernel .*|linux/\w+|\d+ (mounts|allocation)`)
	printed := strings.NewReplacer(d.runtimeDir, "/run/directx-nri", d.stateDir, "/var/lib/directx-nri", d.dir, "/etc/directx-nri").Replace(got.String())
	if diff := cmp.Diff(mask.ReplaceAllString(want, ""), mask.ReplaceAllString(printed, "")); diff != "" {
		t.Errorf("docs/troubleshooting.md shows what is not printed (-shown +printed):\n%s", diff)
	}
}

// One thing after the other is broken, and each is the only failure.
func TestBrokenNodes(t *testing.T) {
	t.Parallel()
	readyz := func(status int, body string) func(*doubles) {
		return func(d *doubles) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				_, _ = io.WriteString(w, body)
			}))
			d.Cleanup(server.Close)
			d.configure("metrics: {address: '" + server.Listener.Addr().String() + "'}\n")
		}
	}
	inventory := func(old, text string) func(*doubles) {
		return func(d *doubles) {
			d.write("gpus.yaml", strings.Replace(doubleGPU, old, text, 1))
			d.configure("")
		}
	}
	const nothing = ""
	for name, test := range map[string]struct {
		change        func(*doubles)
		want, unknown string
	}{
		"unhealthy GPU":                    {inventory("display: true", "display: true, health: {reason: it overheated}"), "gpu: GPU-0 (Tesla T4) is unhealthy: it overheated", nothing},
		"no GPU that a container can have": {inventory("display: true, ", ""), nothing, "gpu"},
		"no device node":                   {inventory("/dev/null", "/dev/none"), "gpu: GPU GPU-0: ", nothing},
		"driver file":                      {inventory("[/dev/null]", "[/dev/null], libraries: [/lib/none.so]"), "gpu: containers get GPU-0 (Tesla T4) without some files: GPU GPU-0: /lib/none.so: the driver lists this file, but it does not exist", nothing},
		"no resource": {func(d *doubles) { d.configure("resources: [{name: a.b/c, match: {description: none}}]\n") },
			"gpu: no GPU is offered", nothing},
		"policy": {func(d *doubles) { testutil.WriteFile(d, policy.Path(d.stateDir), "{", 0o600) },
			"policy: read node policy", "config gpu containerd nri advertiser"},
		"stale configuration": {func(d *doubles) { d.write("config.yaml", configHead) }, "config: ", nothing},
		"invalid configuration": {func(d *doubles) { d.write("config.yaml", configHead+"unknown: 1\n") },
			"config.yaml", nothing},
		"configuration of others": {func(d *doubles) { testutil.NoError(d, os.Chmod(filepath.Join(d.dir, "config.yaml"), 0o666)) },
			access.ErrUntrusted.Error(), nothing},
		"host directory": {func(d *doubles) {
			d.configure("extraMounts: {sources: host-directories, hostDirectories: [/srv/none]}\n")
		}, "config: ", nothing},
		"host directory in a container": {func(d *doubles) {
			d.hostRoot = d.dir
			d.write("srv/tools/file", "")
			d.write("dev/null", "")
			d.configure("extraMounts: {sources: host-directories, hostDirectories: [/srv/tools]}\n")
		}, "gpu: GPU GPU-0: ", nothing}, // A file is no device node.
		"containerd":       {func(d *doubles) { d.criSocket += ".none" }, "containerd: containerd does not answer", "nri advertiser"},
		"plugin":           {func(d *doubles) { d.pluginReady = errors.New("not registered") }, "nri: the NRI plugin cannot work: not registered; start directx-nri", "advertiser"},
		"plugin of others": {func(d *doubles) { testutil.NoError(d, os.Chmod(d.runtimeDir, 0o777)) }, "nri: check ", "advertiser"},
		"kubelet":          {func(d *doubles) { testutil.NoError(d, os.Remove(filepath.Join(d.kubeletDir, "kubelet.sock"))) }, "kubelet: the kubelet does not accept", "advertiser"},
		"advertiser": {func(d *doubles) {
			testutil.NoError(d, os.Remove(filepath.Join(d.kubeletDir, paths.SocketName(displays))))
		}, "advertiser: directx-advertiser does not offer " + displays, nothing},
		"not ready":                  {readyz(http.StatusServiceUnavailable, "the disk is full\n"), "advertiser: directx-advertiser is not ready: the disk is full; start", nothing},
		"ready":                      {readyz(http.StatusOK, "ok\n"), nothing, nothing},
		"the address of another one": {readyz(http.StatusNotFound, "<html>"), nothing, nothing},
		"record": {func(d *doubles) {
			d.write("state/allocations/"+strings.Repeat("ab", 16)+".json", "{")
		}, "delete its pod, then the file", nothing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newKubernetesNode(t)
			test.change(d)
			_, failures, unknown := d.check()
			if all := strings.Join(failures, "\n"); !strings.Contains(all, test.want) || (all == "") != (test.want == "") || len(failures) > 1 {
				t.Errorf("failures %q, want one with %q", failures, test.want)
			}
			if got := strings.Join(unknown, " "); got != test.unknown {
				t.Errorf("not checked: %q, want %q", got, test.unknown)
			}
		})
	}
}

// The shim must have dxctl's version, and exist.
func TestBrokenShim(t *testing.T) {
	t.Parallel()
	d := newDoubles(t)
	d.serveCRI(&runtime.RuntimeService_ServiceDesc, containerd{})
	for text, want := range map[string]string{
		"": "run 'dxctl runtime install'", "#!/bin/sh\necho " + shimfile.BaseName + " 0.9\n": "version 0.9, and dxctl has version 1.0",
	} {
		if text != "" {
			d.write(shimfile.FileName(), text)
		}
		if _, failures, _ := d.check(); len(failures) != 1 || !strings.Contains(failures[0], want) {
			t.Errorf("%q, want %q", failures, want)
		}
		_ = os.Remove(filepath.Join(d.dir, shimfile.FileName()))
	}
}

// A GPU that works in part passes, with its notes.
func TestNotes(t *testing.T) {
	t.Parallel()
	d := resources.Device{Rule: &policy.ResourceRule{Name: displays}, Device: discovery.Device{
		InstanceID: "A", SupportsDisplay: true, DeviceNodes: []discovery.DeviceNode{{Path: "/dev/null", ContainerPath: "/dev/dxg"}},
		Notes: []string{"a library is missing"},
	}}
	var text strings.Builder
	printFindings(&text, checkGPU(nodeState{os: "linux", policy: policy.Default()}, d))
	const want = "✔             A, with 0 mounts, as " + displays + "\n!             A: a library is missing\n"
	if text.String() != want {
		t.Errorf("got\n%swant\n%s", &text, want)
	}
	text.Reset()
	testutil.NoError(t, deviceList().Print(&text, cli.Output{Format: cli.Table}, newGPUReports([]resources.Device{d})))
	if !strings.HasSuffix(text.String(), "  healthy; a library is missing\n") {
		t.Errorf("devices: %s", &text)
	}
}
