package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"directx-nri/discovery"
	"directx-nri/internal/capabilities"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/durable"
	"directx-nri/internal/policy"
	"directx-nri/internal/readiness"
	"directx-nri/internal/win32"
)

const (
	shimPath = "/usr/local/bin/containerd-shim-directx-v1"
	display  = "directx.microsoft.com/display"
	compute  = "directx.microsoft.com/compute"
)

// sound returns the facts of a Linux node of Kubernetes with the NRI plugin and the
// shim.
func sound() Facts {
	patterns := []string{"directx.microsoft.com/*"}
	p := policy.Default()
	p.ServedBy = policy.ServedByNRI // Also when the test runs on Windows.
	return Facts{
		OS: "linux", Version: "1.0",
		Config: Config{Path: "/etc/directx-nri/config.yaml", Policy: p, Applied: true},
		GPUs: GPUs{Inventory: "/etc/directx-nri/inventory.yaml", List: []GPU{
			{Device: discovery.Device{InstanceID: "GPU-0", Description: "Tesla T4", SupportsDisplay: true, DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg"}}}, Resource: display},
			{Device: discovery.Device{InstanceID: "NPU", SupportsCompute: true, DeviceNodes: []discovery.DeviceNode{{Path: "/dev/npu"}}}, Resource: compute},
			{Device: discovery.Device{InstanceID: "WARP", SupportsDisplay: true, Software: true}},
		}},
		Containerd: Containerd{
			ConfigPath: "/etc/containerd/config.toml", Socket: "/run/containerd/containerd.sock", Version: "v1.7.35",
			File: containerdconfig.File{Version: 2, NRI: true, Handlers: []containerdconfig.Handler{
				{Name: "runc", InFile: true, RuntimeType: "io.containerd.runc.v2", RuntimePath: shimPath, PodAnnotations: patterns, ContainerAnnotations: patterns},
			}},
			Loaded: []containerdconfig.Handler{{Name: "runc", RuntimeType: "io.containerd.runc.v2", RuntimePath: shimPath}},
		},
		Shims: []Shim{{Path: shimPath, Handlers: []string{"runc"}, Version: "1.0"}},
		NRI:   NRI{PluginSocket: "/run/directx-nri/nri.sock", Started: true, Socket: "/var/run/nri/nri.sock"},
		Kubelet: Kubelet{
			Dir: "/var/lib/kubelet/device-plugins", PodResources: "/var/lib/kubelet/pod-resources/kubelet.sock",
			Advertiser:  map[string]error{display: nil, compute: nil},
			Allocatable: map[string][]string{display: {"GPU-0::0", "GPU-0::1"}, compute: {"NPU::0"}},
		},
		Records: Records{Dir: "/var/lib/directx-nri/allocations"},
		Access:  []Access{{Path: "/var/lib/directx-nri", Dir: true, Why: "others can change the records"}},
	}
}

func soundWindows() Facts {
	f := sound()
	f.OS = "windows"
	f.Windows = windows(20348, 5)
	f.GPUs = GPUs{List: []GPU{{Device: discovery.Device{InstanceID: "PCI-0", LocationPath: "PCIROOT(0)#PCI(1B00)", SupportsDisplay: true, System32: []discovery.RuntimeFile{{Source: "nvcuda.dll"}}}, Resource: display}}}
	f.NRI = NRI{PluginErr: readiness.ErrNotRunning}
	f.Containerd.File.NRI = false
	f.Containerd.File.Handlers[0].RuntimeType = "io.containerd.runhcs.v1"
	f.Kubelet.Allocatable = map[string][]string{display: {"pci-0::0"}}
	return f
}

func windows(build, minor uint32) *capabilities.Capabilities {
	return &capabilities.Capabilities{Windows: win32.Version{Major: 10, Build: build, Server: true}, Schemas: []capabilities.Schema{{Major: 2, Minor: minor}}}
}

func soundStandalone() Facts {
	f := sound()
	f.Kubelet = Kubelet{Dir: "/var/lib/kubelet/device-plugins", DirErr: fs.ErrNotExist}
	f.Containerd.File = containerdconfig.File{Handlers: []containerdconfig.Handler{{Name: "runc", RuntimeType: "io.containerd.runc.v2"}}}
	f.Containerd.Loaded = f.Containerd.File.Handlers
	f.Shims[0].Handlers = nil
	f.NRI = NRI{PluginErr: readiness.ErrNotRunning, SocketErr: fs.ErrNotExist}
	return f
}

func with(f Facts, change func(*Facts)) Facts {
	change(&f)
	return f
}

var (
	errDenied = fmt.Errorf("open: %w", fs.ErrPermission)
	errGone   = fmt.Errorf("stat: %w", fs.ErrNotExist)
	errSlow   = fmt.Errorf("query: %w", context.DeadlineExceeded)
	errIO     = errors.New("read: input/output error")
)

func TestSoundNodes(t *testing.T) {
	t.Parallel()
	both := []ServedBy{ServedByNRI, ServedByShim}
	for name, test := range map[string]struct {
		facts Facts
		role  Role
		by    []ServedBy
	}{
		"NRI and shim": {sound(), RoleKubernetes, both},
		"NRI only": {with(sound(), func(f *Facts) {
			f.Containerd.File.Handlers[0].RuntimePath, f.Containerd.Loaded[0].RuntimePath = "", ""
			f.Shims = []Shim{{Path: shimPath, Err: fs.ErrNotExist, RealErr: fs.ErrNotExist}}
			f.Config.Applied = false
		}), RoleKubernetes, []ServedBy{ServedByNRI}},
		"shim only": {with(sound(), func(f *Facts) {
			f.Containerd.File.NRI = false
			f.NRI = NRI{PluginErr: readiness.ErrNotRunning, SocketErr: fs.ErrNotExist}
		}), RoleKubernetes, []ServedBy{ServedByShim}},
		"shim by flag, NRI on": {with(sound(), func(f *Facts) { f.ServedBy, f.NRI = ServedByShim, NRI{PluginErr: readiness.ErrNotRunning} }), RoleKubernetes, []ServedBy{ServedByShim}},
		"shim by configuration": {with(sound(), func(f *Facts) {
			f.Config.Policy.ServedBy, f.NRI = policy.ServedByShim, NRI{PluginErr: readiness.ErrNotRunning}
		}), RoleKubernetes, []ServedBy{ServedByShim}},
		"Windows":                {soundWindows(), RoleKubernetes, []ServedBy{ServedByShim}},
		"standalone":             {soundStandalone(), RoleStandalone, []ServedBy{ServedByShim}},
		"standalone without CRI": {with(soundStandalone(), func(f *Facts) { f.Containerd.Err, f.Containerd.WithoutCRI = errIO, true }), RoleStandalone, []ServedBy{ServedByShim}},
		"no record yet":          {with(sound(), func(f *Facts) { f.Records.Err = fs.ErrNotExist }), RoleKubernetes, both},
		"old kubelet":            {with(sound(), func(f *Facts) { f.Kubelet.PodResourcesErr = errors.ErrUnsupported }), RoleKubernetes, both},
		"unknown version":        {with(sound(), func(f *Facts) { f.Version = "" }), RoleKubernetes, both},
		"configured file":        {with(sound(), func(f *Facts) { f.Leftovers = Leftovers{Journal: "journal", Applied: true} }), RoleKubernetes, both},
		"handler of another product": {with(sound(), func(f *Facts) {
			f.Containerd.File.Handlers = append(f.Containerd.File.Handlers, containerdconfig.Handler{Name: "kata", RuntimePath: "/opt/kata"})
		}), RoleKubernetes, both},
		"NRI by import": {with(sound(), func(f *Facts) {
			f.ServedBy, f.Containerd.File.NRI, f.Containerd.Overrides = ServedByNRI, false, []string{"x"}
		}), RoleKubernetes, []ServedBy{ServedByNRI}},
	} {
		v := Examine(test.facts)
		if len(v.Findings) > 0 || v.Role != test.role || !slices.Equal(v.ServedBy, test.by) || v.Result != Sound {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// brokenNode is a node with one problem, and the expected finding.
type brokenNode struct {
	facts    Facts
	check    string
	problem  string
	severity Severity
}

func linux(check, problem string, change func(*Facts)) brokenNode {
	return brokenNode{with(sound(), change), check, problem, Problem}
}

func onWindows(check, problem string, change func(*Facts)) brokenNode {
	return brokenNode{with(soundWindows(), change), check, problem, Problem}
}

// brokenNodes are also the examples in docs/troubleshooting.md, in this order.
func brokenNodes() []brokenNode {
	standalone := func(check, problem string, change func(*Facts)) brokenNode {
		return brokenNode{with(soundStandalone(), change), check, problem, Problem}
	}
	unknown := func(check, problem string, change func(*Facts)) brokenNode {
		return brokenNode{with(sound(), change), check, problem, Unknown}
	}
	return []brokenNode{
		{Facts{
			OS: "linux", Config: Config{Policy: policy.Policy{ServedBy: policy.ServedByNRI}}, GPUs: GPUs{Err: errGone},
			Containerd: Containerd{Version: "v2.4.2", File: containerdconfig.File{NRI: true}}, Shims: []Shim{{Path: shimPath, Err: errGone}}, NRI: NRI{PluginErr: readiness.ErrNotRunning},
		}, CheckSetup, "directx-nri is not set up", Problem},
		linux(CheckConfig, "format 7", func(f *Facts) {
			f.Config.Err = errors.New("read node policy /var/lib/directx-nri/policy.json: format 7, want 1")
			f.GPUs = GPUs{Err: f.Config.Err}
		}),
		linux(CheckConfig, "line 3", func(f *Facts) {
			f.Config.Stale, f.Config.Invalid = []string{"x"}, errors.New("/etc/directx-nri/config.yaml: line 3: unknown key")
		}),
		linux(CheckConfig, "has changed since", func(f *Facts) {
			f.Config.Stale = []string{"/etc/directx-nri/config.yaml has changed since the policy in force was compiled"}
		}),
		linux(CheckInventory, "devices.jsonl", func(f *Facts) {
			f.GPUs = GPUs{Inventory: "/etc/directx-nri/inventory.yaml", Err: errors.New("read devices.jsonl: damaged")}
		}),
		linux(CheckInventory, "no inventory is configured", func(f *Facts) { f.GPUs = GPUs{Err: errors.New("no inventory")} }),
		linux(CheckDevices, "no GPU that a container can have", func(f *Facts) { f.GPUs.List = f.GPUs.List[2:] }),
		linux(CheckDevices, "GPU GPU-0 (Tesla T4) is unhealthy: it was disabled (22)", func(f *Facts) {
			f.GPUs.List[0].Health.Reason = "it was disabled (22)"
			delete(f.Kubelet.Allocatable, display)
		}),
		onWindows(CheckDevices, "no location path", func(f *Facts) { f.GPUs.List[0].LocationPath = "" }),
		linux(CheckFiles, "/a.so, /b.so, /c.so and 1 more", func(f *Facts) {
			f.GPUs.List[0].Missing = []string{"/a.so", "/b.so", "/c.so", "/d.so"}
			f.GPUs.List[1].Missing = f.GPUs.List[0].Missing
		}),
		onWindows(CheckFiles, "lists no runtime files", func(f *Facts) { f.GPUs.List[0].System32 = nil }),
		linux(CheckFiles, "no device node", func(f *Facts) { f.GPUs.List[0].DeviceNodes = nil }),
		linux(CheckResources, "no configured resource matches", func(f *Facts) {
			f.GPUs.List[0].Resource, f.GPUs.List[1].Resource, f.Kubelet.Allocatable = "", "", nil
		}),
		onWindows(CheckHCS, "require 2.2", func(f *Facts) { f.Windows, f.Config.Policy.Assignment = windows(17763, 1), policy.AssignByPath }),
		onWindows(CheckHCS, "is not available", func(f *Facts) { f.Windows.Schemas, f.Windows.SchemasErr = nil, errors.ErrUnsupported }),
		onWindows(CheckHCS, "does not answer", func(f *Facts) { f.Windows = &capabilities.Capabilities{SchemasErr: errSlow} }),
		linux(CheckContainerd, "does not answer: connection refused", func(f *Facts) {
			f.Containerd.Err, f.Containerd.Loaded, f.NRI.PluginErr = syscall.ECONNREFUSED, nil, readiness.ErrNotServing
		}),
		linux(CheckContainerd, "deadline exceeded", func(f *Facts) {
			f.Containerd.Err, f.Containerd.Loaded, f.NRI.PluginErr = errSlow, nil, readiness.ErrNotServing
		}),
		linux(CheckContainerd, "without its CRI plugin", func(f *Facts) { f.Containerd.Err, f.Containerd.WithoutCRI = errIO, true }),
		linux(CheckContainerd, "older than 1.7", func(f *Facts) { f.Containerd.Version, f.NRI.PluginErr = "v1.6.36", readiness.ErrNotServing }),
		linux(CheckContainerd, "for a pod's sandbox only", func(f *Facts) { f.ServedBy, f.Containerd.Version = ServedByShim, "v2.4.2" }),
		linux(CheckFile, "config.toml:3:1", func(f *Facts) {
			f.Containerd.FileErr, f.Containerd.File = errors.New("config.toml:3:1: expected"), containerdconfig.File{}
		}),
		linux(CheckFile, "conf.d/x.toml", func(f *Facts) {
			f.Containerd.Overrides = []string{"conf.d/x.toml, which /etc/containerd/config.toml imports, has plugins.cri"}
		}),
		linux(CheckFile, "conf.d/x.toml:1:2", func(f *Facts) {
			f.ServedBy, f.Containerd.BadImports = ServedByNRI, []string{"conf.d/x.toml:1:2: expected"}
		}),
		onWindows(CheckHandlers, "no runtime handler uses our shim", func(f *Facts) {
			f.Containerd.File.Handlers[0].RuntimePath, f.Containerd.Loaded[0].RuntimePath, f.Kubelet.Allocatable = "", "", nil
		}),
		linux(CheckHandlers, "has the sandboxer shim, not podsandbox, and uses our shim", func(f *Facts) { f.Containerd.File.Handlers[0].Sandboxer = "shim" }),
		linux(CheckHandlers, "runc does not pass on", func(f *Facts) { f.Containerd.File.Handlers[0].PodAnnotations = nil }),
		linux(CheckHandlers, "has not loaded runtime handler runc", func(f *Facts) { f.Containerd.Loaded[0].RuntimePath = "" }),
		linux(CheckHandlers, "has not loaded runtime handler runc", func(f *Facts) { f.Containerd.File.Handlers[0].RuntimePath = "" }),
		linux(CheckHandlers, "has not loaded runtime handler runc", func(f *Facts) { f.Containerd.File.Handlers[0] = containerdconfig.Handler{Name: "other"} }),
		linux(CheckShim, "the shim of runtime handler runc does not exist", func(f *Facts) { f.Shims[0].Err, f.Shims[0].RealErr = errGone, errGone }),
		standalone(CheckShim, "the shim of ctr and nerdctl does not exist", func(f *Facts) { f.Shims[0].Err = errGone }),
		linux(CheckShim, "exec format error", func(f *Facts) { f.Shims[0].Err = errors.New("exec format error") }),
		linux(CheckShim, "version 0.9, and dxctl has version 1.0", func(f *Facts) { f.Shims[0].Version = "0.9" }),
		linux(CheckShim, "runtime shim not found", func(f *Facts) { f.Shims[0].RealErr = errors.New("runtime shim not found") }),
		linux(CheckNRI, "NRI is disabled in containerd", func(f *Facts) { f.Containerd.File.NRI, f.NRI.PluginErr = false, readiness.ErrNotServing }),
		linux(CheckNRI, "disabled in /etc/containerd/config.toml", func(f *Facts) { f.Containerd.File.NRI = false }),
		linux(CheckNRI, "does not accept NRI plugins", func(f *Facts) { f.NRI.PluginErr, f.NRI.SocketErr = readiness.ErrNotServing, errGone }),
		linux(CheckNRI, "not running", func(f *Facts) { f.NRI.PluginErr, f.NRI.Started = readiness.ErrNotRunning, false }),
		linux(CheckNRI, "not connected", func(f *Facts) { f.NRI.PluginErr = readiness.ErrNotServing }),
		linux(CheckKubelet, "does not accept device plugins", func(f *Facts) {
			f.Kubelet.SocketErr, f.Kubelet.PodResourcesErr, f.Kubelet.Allocatable = errGone, errGone, nil
		}),
		linux(CheckKubelet, "does not accept device plugins", func(f *Facts) {
			f.Role, f.Kubelet = RoleKubernetes, Kubelet{Dir: "/var/lib/kubelet/device-plugins", DirErr: errGone}
		}),
		linux(CheckAdvertiser, "directx-advertiser does not answer", func(f *Facts) {
			f.Kubelet.Advertiser[display], f.Kubelet.Advertiser[compute], f.Kubelet.Allocatable = errGone, errGone, nil
		}),
		linux(CheckRegistration, "does not offer "+display, func(f *Facts) { delete(f.Kubelet.Allocatable, display) }),
		linux(CheckRegistration, "without GPU GPU-1", func(f *Facts) { f.GPUs.List[1].InstanceID, f.GPUs.List[1].Resource = "GPU-1", display }),
		linux(CheckRegistration, "PodResources API cannot be reached", func(f *Facts) { f.Kubelet.PodResourcesErr = errGone }),
		linux(CheckRecords, "checksum", func(f *Facts) {
			f.Records.Damaged = []FileError{{"/var/lib/directx-nri/allocations/1f.json", errors.New("its checksum does not match")}}
		}),
		linux(CheckRecords, "not private", func(f *Facts) { f.Records.Err = fmt.Errorf("list: %w", durable.ErrNotPrivate) }),
		linux(CheckRecords, "input/output error", func(f *Facts) { f.Records.Err = errIO }),
		linux(CheckPermissions, "others can write it", func(f *Facts) { f.Shims[0].Err = fmt.Errorf("%s: %w", shimPath, durable.ErrUntrusted) }),
		linux(CheckPermissions, "not private", func(f *Facts) {
			f.Access[0].Err = fmt.Errorf("/var/lib/directx-nri: %w", durable.ErrNotPrivate)
			f.Config.Err, f.GPUs.Err = f.Access[0].Err, f.Access[0].Err
		}),
		linux(CheckPermissions, "others can write it", func(f *Facts) {
			f.Access = []Access{{Path: "/etc/directx-nri/inventory.yaml", Err: fmt.Errorf("/etc/directx-nri/inventory.yaml: %w", durable.ErrUntrusted), Why: "the file is refused"}}
		}),
		linux(CheckPermissions, "does not exist", func(f *Facts) {
			f.Access = []Access{{Path: "/srv/models", Dir: true, Err: errGone, Why: "others decide"}}
		}),
		linux(CheckPermissions, "input/output error", func(f *Facts) { f.Access[0].Err = errIO }),
		linux(CheckLeftovers, "no longer has the changes", func(f *Facts) { f.Leftovers = Leftovers{Journal: "/var/lib/directx-nri/runtime-configure.json"} }),
		linux(CheckLeftovers, "unexpected end", func(f *Facts) {
			f.Leftovers.Damaged = []FileError{{"/var/lib/directx-nri/runtime-configure.json", errors.New("unexpected end of JSON input")}}
		}),
		linux(CheckLeftovers, "containerd's configuration", func(f *Facts) { f.Leftovers = Leftovers{Backup: "/etc/containerd/config.toml.directx-nri.bak"} }),
		linux(CheckLeftovers, "did not restart with the configuration of 'dxctl runtime configure' at 2026-01-02T03:04:05Z: runc is not loaded", func(f *Facts) {
			f.Leftovers = Leftovers{Failed: "/var/lib/directx-nri/configure-failed.json", FailedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), FailedCause: "runc is not loaded"}
			f.Containerd.File.Handlers, f.Containerd.Loaded, f.ServedBy = nil, nil, ServedByShim
		}),
		linux(CheckLeftovers, "handed over", func(f *Facts) { f.Leftovers = Leftovers{Pending: "/var/lib/directx-nri/uninstall-pending"} }),
		linux(CheckLeftovers, "k8s.io/a", func(f *Facts) {
			f.Leftovers = Leftovers{Abandoned: []string{"k8s.io/a"}, AbandonedBy: "/opt/old/containerd-shim-directx-v1"}
		}),
		unknown(CheckAccess, "permission denied: ", func(f *Facts) { f.Records.Err, f.NRI.PluginErr = errDenied, errDenied }),
	}
}

// Each broken node has exactly the expected finding.
func TestBrokenNodes(t *testing.T) {
	t.Parallel()
	for _, test := range brokenNodes() {
		v := Examine(test.facts)
		if len(v.Findings) != 1 || v.Findings[0].Check != test.check || v.Findings[0].Severity != test.severity || !strings.Contains(v.Findings[0].Problem, test.problem) {
			t.Errorf("%+v, want one finding of %s with %q", v.Findings, test.check, test.problem)
			continue
		}
		if f := v.Findings[0]; f.Why == "" || f.Fix == "" || strings.Contains(f.Problem+f.Why+f.Fix, "\n") || !slices.Contains(v.Checks, f.Check) {
			t.Errorf("%+v", f)
		}
	}
}

func TestNotes(t *testing.T) {
	t.Parallel()
	byKubelet := with(soundWindows(), func(f *Facts) {
		f.Config.Policy.Injection = policy.InjectByKubelet
		f.Containerd.File.Handlers[0].RuntimePath, f.Containerd.Loaded[0].RuntimePath = "", ""
		f.Shims = nil
	})
	for want, f := range map[string]Facts{
		"a container can have one GPU only":      byKubelet,
		"containers get all GPUs of the node":    with(soundWindows(), func(f *Facts) { f.Windows, f.GPUs.List[0].LocationPath = windows(17763, 1), "" }),
		"no configured resource matches GPU NPU": with(sound(), func(f *Facts) { f.GPUs.List[1].Resource = "" }),
	} {
		v := Examine(f)
		if v.Result != Sound || len(v.Notes) != 1 || !strings.Contains(v.Notes[0], want) {
			t.Errorf("%q: %+v", want, v)
		}
	}
}

// A problem takes precedence over a lack of permission.
func TestWithoutPermission(t *testing.T) {
	t.Parallel()
	f := with(sound(), func(f *Facts) {
		f.Containerd.Err, f.Containerd.Loaded, f.Records.Err = errDenied, nil, errDenied
		f.Kubelet = Kubelet{Dir: "/var/lib/kubelet/device-plugins", DirErr: errDenied}
	})
	v := Examine(f)
	if len(v.Findings) != 1 || v.Result != NotKnown || !strings.Contains(v.Findings[0].Problem, "/run/containerd/containerd.sock") || !strings.Contains(v.Findings[0].Problem, "allocations") {
		t.Errorf("%+v", v)
	}
	f.GPUs.List[0].Missing = []string{"/a.so"}
	if v := Examine(f); v.Result != Findings || len(v.Findings) != 2 {
		t.Errorf("%+v", v)
	}
}

func TestPrint(t *testing.T) {
	t.Parallel()
	f := with(sound(), func(f *Facts) {
		f.Records.Damaged = []FileError{{"a\x1b[31mb", errGone}}
		f.GPUs.List[1].Resource = ""
	})
	var text strings.Builder
	if err := Examine(f).Print(&text); err != nil {
		t.Fatal(err)
	}
	const want = `problem records: a�[31mb
  what  an allocation record cannot be used: stat: file does not exist
  why   a container whose record cannot be used does not start
  fix   delete its pod, then the file: rm a�[31mb

note  no configured resource matches GPU NPU, which is not offered
1 problem(s), 0 unknown in 17 checks of a Kubernetes node served by the NRI plugin and the runtime shim
`
	if text.String() != want {
		t.Errorf("%s", text.String())
	}
}
