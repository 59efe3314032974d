package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/readiness"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/win32"
	"github.com/directx-nri/directx-nri/shim/diversion"
)

const (
	shimPath = "/usr/local/bin/containerd-shim-directx-v1"
	display  = "directx.microsoft.com/display"
	compute  = "directx.microsoft.com/compute"
)

// healthyNode returns the state of a Linux node of Kubernetes with the NRI plugin and the shim.
func healthyNode() nodeState {
	p := policy.Default()
	p.Injection = policy.InjectByNRI // Also when the test runs on Windows.
	p.CompiledFrom.Inventory = "/etc/directx-nri/inventory.yaml"
	return nodeState{
		OS: "linux", Version: "1.0",
		Config: configState{Path: "/etc/directx-nri/config.yaml", Policy: p, Applied: true},
		GPUs: []gpu{
			{Device: discovery.Device{InstanceID: "GPU-0", Description: "Tesla T4", SupportsDisplay: true, DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg"}}}, Resource: display},
			{Device: discovery.Device{InstanceID: "NPU", SupportsCompute: true, DeviceNodes: []discovery.DeviceNode{{Path: "/dev/npu"}}}, Resource: compute},
			{Device: discovery.Device{InstanceID: "WARP", SupportsDisplay: true, Software: true}},
		},
		Containerd: containerdState{
			Socket: "/run/containerd/containerd.sock", Version: "v1.7.35", Handlers: map[string]string{"runc": ""},
		},
		Shim: shimState{Path: shimPath, Version: "1.0"},
		Kubelet: &kubeletState{
			Dir:         "/var/lib/kubelet/device-plugins",
			Allocatable: map[string][]string{display: {"GPU-0::0", "GPU-0::1"}, compute: {"NPU::0"}},
		},
	}
}

func healthyWindows() nodeState {
	f := healthyNode()
	f.OS = "windows"
	f.Windows = windows(20348)
	f.Config.Policy.Injection = policy.InjectByShim
	f.Config.Policy.CompiledFrom.Inventory = ""
	f.GPUs = []gpu{{Device: discovery.Device{
		InstanceID: "PCI-0", LocationPath: "PCIROOT(0)#PCI(1B00)", SupportsDisplay: true,
		System32: []discovery.RuntimeFile{{Source: "nvcuda.dll"}},
	}, Resource: display}}
	f.NRIErr = readiness.ErrNotRunning
	f.Kubelet.Allocatable = map[string][]string{} // As kubelets for Windows answer.
	return f
}

func windows(build uint32) *windowsState {
	return &windowsState{Version: win32.Version{Build: build}}
}

func healthyStandalone() nodeState {
	f := healthyNode()
	f.Kubelet, f.NRIErr = nil, readiness.ErrNotRunning
	return f
}

func with(f nodeState, change func(*nodeState)) nodeState {
	change(&f)
	return f
}

// undiscovered makes discovery fail.
func undiscovered(f *nodeState, err error) {
	f.GPUs, f.GPUsErr, f.Config.Policy.CompiledFrom.Inventory = nil, err, ""
}

var (
	errDenied = fmt.Errorf("open: %w", fs.ErrPermission)
	errGone   = fmt.Errorf("stat: %w", fs.ErrNotExist)
	errSlow   = fmt.Errorf("query: %w", context.DeadlineExceeded)
	errIO     = errors.New("read: input/output error")

	errWithoutCRI = status.Error(codes.Unimplemented, "unknown service runtime.v1.RuntimeService")
)

func TestHealthyNodes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		state nodeState
		by    policy.Injection
	}{
		"NRI": {healthyNode(), policy.InjectByNRI},
		"NRI without a shim": {with(healthyNode(), func(f *nodeState) {
			f.Shim, f.Config.Applied = shimState{Err: fs.ErrNotExist}, false
		}), policy.InjectByNRI},
		"NRI at another socket": {with(healthyNode(), func(f *nodeState) { f.NRISocketErr = errGone }), policy.InjectByNRI},
		"Windows":               {healthyWindows(), policy.InjectByShim},
		"Windows by default":    {with(healthyWindows(), func(f *nodeState) { f.Config.Policy.Injection = policy.InjectAuto }), policy.InjectByShim},
		"Windows Server 2025": {with(healthyWindows(), func(f *nodeState) {
			f.DriverFiles, f.GPUs[0].System32 = policy.FilesNone, nil
		}), policy.InjectByShim},
		"Windows without a GPU": {with(healthyWindows(), func(f *nodeState) {
			f.GPUs, f.GPUsErr, f.Shim = nil, node.ErrNoSource, shimState{Err: diversion.ErrNotDiverted}
		}), policy.InjectByShim},
		"kubelet": {with(healthyWindows(), func(f *nodeState) {
			f.Config.Policy.Injection, f.Shim = policy.InjectByKubelet, shimState{Err: diversion.ErrNotDiverted}
		}), policy.InjectByKubelet},
		"kubelet by default": {with(healthyWindows(), func(f *nodeState) {
			f.Config.Policy.Injection, f.Containerd.Version, f.Shim = policy.InjectAuto, "v2.0.4", shimState{Err: diversion.ErrNotDiverted}
		}), policy.InjectByKubelet},
		"standalone":             {healthyStandalone(), policy.InjectByShim},
		"standalone without CRI": {with(healthyStandalone(), func(f *nodeState) { f.Containerd.Err = errWithoutCRI }), policy.InjectByShim},
		"standalone without usable handlers": {with(healthyStandalone(), func(f *nodeState) {
			f.Containerd.HandlersErr = errIO
		}), policy.InjectByShim},
	} {
		role := roleKubernetes
		if test.state.Kubelet == nil {
			role = roleStandalone
		}
		r := examine(test.state)
		r.Findings = slices.DeleteFunc(r.Findings, func(f finding) bool { return f.Check == checkInventory }) // of a node without a GPU
		if len(r.Findings) > 0 || r.Role != role || r.Injection != test.by {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// brokenNode is a node with one problem, and the expected finding.
type brokenNode struct {
	state          nodeState
	check, problem string
}

func linux(check, problem string, change func(*nodeState)) brokenNode {
	return brokenNode{with(healthyNode(), change), check, problem}
}

func onWindows(check, problem string, change func(*nodeState)) brokenNode {
	return brokenNode{with(healthyWindows(), change), check, problem}
}

func file(check, problem string, kind findingKind, path string, err error) brokenNode {
	return linux(check, problem, func(state *nodeState) { state.Files = []fileProblem{{kind, path, err}} })
}

// errNotRegistered is what the NRI plugin answers without a containerd that has NRI.
var errNotRegistered = errors.New("the NRI plugin cannot work: not registered with the container runtime on /run/nri.sock")

// brokenNodes are nodes of which each has one problem.
func brokenNodes() []brokenNode {
	others := func(path string, reason error) error {
		return errlog.WithRemedy(fmt.Errorf("check %s: %w: mode 0777", path, reason), "remove it, or restrict its access")
	}
	const state = "/var/lib/directx-nri"
	return []brokenNode{
		{nodeState{
			OS: "linux", GPUsErr: errGone, Containerd: containerdState{Version: "v2.4.2"},
			Shim: shimState{Path: shimPath, Err: errGone}, NRIErr: readiness.ErrNotRunning, Kubelet: &kubeletState{},
		}, checkSetup, "directx-nri is not set up"},
		{nodeState{
			OS: "linux", GPUsErr: node.ErrNoSource, Containerd: containerdState{Version: "v2.4.2"}, NRIErr: readiness.ErrNotRunning, Shim: shimState{Err: errGone},
		}, checkInventory, node.ErrNoSource.Error()},
		linux(checkConfig, "format 7", func(f *nodeState) {
			f.Config.Err = errors.New("read node policy /var/lib/directx-nri/policy.json: format 7, want 1")
			undiscovered(f, f.Config.Err)
		}),
		linux(checkConfig, "line 3", func(f *nodeState) {
			f.Config.Stale, f.Config.Invalid = []string{"x"}, errors.New("/etc/directx-nri/config.yaml: line 3: unknown key")
		}),
		linux(checkConfig, "has changed since", func(f *nodeState) {
			f.Config.Stale = []string{"/etc/directx-nri/config.yaml has changed since the policy in force was compiled"}
		}),
		linux(checkInventory, "devices.json", func(f *nodeState) {
			f.GPUs, f.GPUsErr = nil, errors.New("read devices.json: damaged")
		}),
		linux(checkInventory, "no inventory is configured", func(f *nodeState) { undiscovered(f, node.ErrNoSource) }),
		linux(checkWSL, "has no /dev/dxg", func(f *nodeState) {
			f.WSL = &wslState{Kernel: "5.15.0-microsoft", Libraries: true, Systemd: true}
			undiscovered(f, node.ErrNoSource)
		}),
		linux(checkWSL, "no libraries", func(f *nodeState) {
			f.WSL, f.Config.Policy.CompiledFrom.Inventory = &wslState{Driver: true, Systemd: true}, ""
			f.GPUs[0].Health.Reason = "the VM has no libraries"
			delete(f.Kubelet.Allocatable, display)
		}),
		linux(checkWSL, "systemd", func(f *nodeState) {
			f.WSL, f.Containerd.Err = &wslState{Driver: true, Libraries: true}, errGone
			f.Kubelet.SocketErr, f.Kubelet.AdvertiserErr = errGone, errGone
		}),
		linux(checkDevices, "no GPU that a container can have", func(f *nodeState) { f.GPUs = f.GPUs[2:] }),
		linux(checkDevices, "GPU GPU-0 (Tesla T4) is unhealthy: it was disabled (22)", func(f *nodeState) {
			f.GPUs[0].Health.Reason = "it was disabled (22)"
			delete(f.Kubelet.Allocatable, display)
		}),
		linux(checkDevices, "GPU GPU-0 (Tesla T4) is unhealthy: the driver does not answer", func(f *nodeState) {
			f.Config.Policy.CompiledFrom.Inventory, f.GPUs[0].Health.Reason = "", "the driver does not answer: input/output error (EIO)"
			delete(f.Kubelet.Allocatable, display)
		}),
		onWindows(checkDevices, "no location path", func(f *nodeState) {
			f.GPUs[0].Err = errors.New("GPU PCI-0: it cannot be assigned to a container: no location path")
		}),
		linux(checkDevices, "no device nodes", func(f *nodeState) {
			f.GPUs, f.Kubelet.Allocatable = f.GPUs[:1], nil
			f.GPUs[0].Resource, f.GPUs[0].Err = "", errors.New("GPU GPU-0: it cannot be assigned to a container: no device nodes")
		}),
		onWindows(checkDevices, "without runtime files", func(f *nodeState) { f.GPUs[0].System32 = nil }),
		linux(checkDriverFiles, "/a.so, /b.so, /c.so and 1 more", func(f *nodeState) {
			f.GPUs[0].Missing = []string{"/a.so", "/b.so", "/c.so", "/d.so"}
			f.GPUs[1].Missing = f.GPUs[0].Missing
		}),
		linux(checkResources, "no configured resource matches", func(f *nodeState) {
			f.GPUs[0].Resource, f.GPUs[1].Resource, f.Kubelet.Allocatable = "", "", nil
		}),
		onWindows(checkHCS, "build 17763 cannot", func(f *nodeState) { f.Windows, f.Config.Policy.Assignment = windows(17763), policy.AssignByPath }),
		onWindows(checkHCS, "is not available", func(f *nodeState) { f.Windows.HCSErr = errors.ErrUnsupported }),
		onWindows(checkHCS, "does not answer", func(f *nodeState) { f.Windows.HCSErr = errSlow }),
		linux(checkContainerd, "does not answer: connection refused", func(f *nodeState) {
			f.Containerd.Err, f.NRIErr = syscall.ECONNREFUSED, errNotRegistered
		}),
		linux(checkContainerd, "without its CRI plugin", func(f *nodeState) { f.Containerd.Err = errWithoutCRI }),
		linux(checkContainerd, "older than 1.7", func(f *nodeState) { f.Containerd.Version, f.NRIErr = "v1.6.36", errNotRegistered }),
		onWindows(checkContainerd, "runs no shim for the containers of pods", func(f *nodeState) { f.Containerd.Version = "v2.0.4" }),
		linux(checkHandlers, "has the sandboxer shim", func(f *nodeState) {
			f.Containerd.HandlersErr = errlog.WithRemedy(errors.New("no runtime handler of containerd can have GPUs: runtime handler a has the sandboxer shim"), "add one")
		}),
		onWindows(checkHandlers, "bootstrap version 3", func(f *nodeState) {
			f.Kubelet.Allocatable = nil
			f.Shim.BypassErr = errors.New("containerd bypasses the shim: the real shim answers with bootstrap version 3")
		}),
		{with(healthyStandalone(), func(f *nodeState) { f.Shim.Err = errGone }), checkShim, "file does not exist"},
		{with(healthyStandalone(), func(f *nodeState) { f.Shim.Err = errors.New("exec format error") }), checkShim, "exec format error"},
		onWindows(checkShim, diversion.ErrNotDiverted.Error(), func(f *nodeState) { f.Shim.Err = diversion.ErrNotDiverted }),
		onWindows(checkShim, diversion.ErrOverwritten.Error(), func(f *nodeState) { f.Shim.Err = diversion.ErrOverwritten }),
		onWindows(checkShim, diversion.ErrInterrupted.Error(), func(f *nodeState) { f.Shim.Err = diversion.ErrInterrupted }),
		onWindows(checkShim, diversion.ErrBroken.Error(), func(f *nodeState) { f.Shim.Err = diversion.ErrBroken }),
		onWindows(checkShim, "version 0.9, and dxctl has version 1.0", func(f *nodeState) { f.Shim.Version = "0.9" }),
		linux(checkNRI, "containerd does not listen on it", func(f *nodeState) { f.NRIErr, f.NRISocketErr = readiness.ErrNotRunning, errGone }),
		linux(checkNRI, "not running", func(f *nodeState) { f.NRIErr = readiness.ErrNotRunning }),
		linux(checkKubelet, "does not accept device plugins", func(f *nodeState) {
			f.Kubelet.SocketErr, f.Kubelet.AdvertiserErr, f.Kubelet.PodResourcesErr, f.Kubelet.Allocatable = errGone, errGone, errGone, nil
		}),
		linux(checkAdvertiser, "directx-advertiser does not answer", func(f *nodeState) { f.Kubelet.AdvertiserErr, f.Kubelet.Allocatable = errGone, nil }),
		linux(checkRegistration, "does not list GPU GPU-0 as allocatable "+display, func(f *nodeState) { delete(f.Kubelet.Allocatable, display) }),
		onWindows(checkRegistration, "the kubelet does not watch "+display, func(f *nodeState) {
			f.Kubelet.ReadyErr = errors.New("directx-advertiser is not ready: the kubelet does not watch " + display + ": is it running?")
		}),
		linux(checkRegistration, "is not ready", func(f *nodeState) {
			f.Kubelet.Allocatable, f.Kubelet.ReadyErr = nil, errors.New("directx-advertiser is not ready: it cannot list GPUs")
		}),
		onWindows(checkRegistration, "does not list GPU PCIROOT(0)#PCI(1B00)", func(f *nodeState) { f.Kubelet.Allocatable["example.com/fpga"] = []string{"0"} }),
		linux(checkRegistration, "PodResources API cannot be reached", func(f *nodeState) { f.Kubelet.PodResourcesErr = errGone }),
		file(checkRecords, "checksum", recordUnusable, state+"/allocations/1f.json", errors.New("an allocation record cannot be used: its checksum does not match")),
		onWindows(checkPermissions, "others can write to it", func(f *nodeState) { f.Shim.Err = others(shimPath, access.ErrUntrusted) }),
		linux(checkPermissions, "not private", func(f *nodeState) {
			f.Config.Err = others(state, access.ErrNotPrivate)
			f.GPUsErr, f.Files = f.Config.Err, []fileProblem{{writableByOthers, state, f.Config.Err}}
		}),
		file(checkPermissions, "no answer", filesHang, state, fmt.Errorf("check the files of directx-nri: no answer: %w", context.DeadlineExceeded)),
		file(checkPermissions, "does not exist", hostDirectoryUntrusted, "/srv/models", errors.New("check /srv/models: file does not exist")),
	}
}

// Each broken node has exactly the expected finding.
func TestBrokenNodes(t *testing.T) {
	t.Parallel()
	for _, test := range brokenNodes() {
		r := examine(test.state)
		if len(r.Findings) != 1 || r.Findings[0].Check != test.check {
			t.Errorf("%+v, want one finding of %s with %q", r.Findings, test.check, test.problem)
			continue
		}
		f := r.Findings[0]
		if f.Severity != severityProblem || !strings.Contains(f.Problem, test.problem) {
			t.Errorf("%+v, want a problem with %q", f, test.problem)
		}
		if f.Effect == "" || f.Fix == "" || strings.Contains(f.Problem+f.Effect+f.Fix, "\n") {
			t.Errorf("%+v, want an effect and a remedy, in one line each", f)
		}
		if hasFiles := len(f.Files) == 4; hasFiles != (f.Check == checkDriverFiles) {
			t.Errorf("%+v has files: %t", f, hasFiles)
		}
	}
}

// Remedies depend on what serves the node.
func TestRemedies(t *testing.T) {
	t.Parallel()
	broken := brokenNodes()[0].state
	for want, state := range map[string]nodeState{
		"services of the package":             broken,
		"runtime install":                     with(broken, func(f *nodeState) { f.Kubelet = nil }),
		"check the GPU's driver":              with(healthyNode(), func(f *nodeState) { undiscovered(f, errIO) }),
		"'systemctl restart containerd', see": with(healthyNode(), func(f *nodeState) { f.Containerd.Err = errIO }),
		"restart the service of k3s or RKE2, see": with(healthyNode(), func(f *nodeState) {
			f.Containerd.Err, f.Containerd.Socket = errIO, "/run/k3s/containerd/containerd.sock"
		}),
		"run 'dxctl config apply' again": with(healthyNode(), func(f *nodeState) {
			f.Config.Err = fmt.Errorf("the policy: %w", errlog.WithRemedy(errIO, "run 'dxctl config apply' again"))
		}),
	} {
		r := examine(state)
		if len(r.Findings) != 1 || !strings.Contains(r.Findings[0].Fix, want) || strings.Contains(r.Findings[0].Problem, want) {
			t.Errorf("%+v, want %s", r.Findings, want)
		} else if cause := state.Config.Err; cause != nil && !strings.Contains(r.Findings[0].Problem, "the policy: "+errIO.Error()) {
			t.Errorf("%+v, want all of the error", r.Findings)
		}
	}
}

// A lack of permission is not a problem of the node.
func TestWithoutPermission(t *testing.T) {
	t.Parallel()
	f := with(healthyNode(), func(f *nodeState) {
		f.Containerd.Err, f.Files = errDenied, []fileProblem{{recordUnusable, "allocations", errDenied}}
		f.Kubelet = &kubeletState{Dir: "/var/lib/kubelet/device-plugins", SocketErr: errDenied}
	})
	r := examine(f)
	if r.Problems() != 0 || len(r.Findings) != 3 {
		t.Fatalf("%+v", r)
	}
	if f := r.Findings[0]; f.Object != "allocations" || !strings.Contains(f.Fix, "as root") {
		t.Errorf("%+v", f)
	}
	f.GPUs[0].Missing = []string{"/a.so"}
	if r := examine(f); r.Problems() != 1 {
		t.Errorf("%+v", r)
	}
}

func TestPrint(t *testing.T) {
	t.Parallel()
	f := with(healthyNode(), func(f *nodeState) {
		f.Files = []fileProblem{{recordUnusable, "a\x1b[31mb", errGone}}
	})
	var text strings.Builder
	testutil.NoError(t, examine(f).Print(&text))
	const want = `problem records: a [31mb
  what    stat: file does not exist
  effect  a container whose record cannot be used does not start
  fix     delete its pod, then the file: rm a [31mb

a kubernetes node with injection by nri: 1 problem(s), 0 unknown
`
	if text.String() != want {
		t.Errorf("%s", text.String())
	}
}
