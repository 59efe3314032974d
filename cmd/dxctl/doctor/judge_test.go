package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"directx-nri/discovery"
	"directx-nri/internal/capabilities"
	"directx-nri/internal/config"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/durable"
	"directx-nri/internal/readiness"
	"directx-nri/internal/win32"
)

const shimPath = "/usr/local/bin/containerd-shim-directx-v1"

// sound returns the facts of a Linux node of Kubernetes on which both the NRI
// plugin and the shim are set up.
func sound() Facts {
	patterns := []string{"directx.microsoft.com/*"}
	return Facts{
		OS: "linux", Version: "1.0", Role: RoleAuto, ServedBy: ServedByAuto,
		Config: ConfigFile{Path: "/etc/directx-nri/config.yaml", Exists: true, Value: config.Default()},
		GPUs: GPUs{Inventory: "/etc/directx-nri/inventory.yaml", List: []GPU{
			{Device: discovery.Device{InstanceID: "GPU-0", Description: "Tesla T4", SupportsDisplay: true, DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg"}}}},
			{Device: discovery.Device{InstanceID: "NPU", SupportsCompute: true, DeviceNodes: []discovery.DeviceNode{{Path: "/dev/npu"}}}},
			{Device: discovery.Device{InstanceID: "WARP", SupportsDisplay: true, Software: true}},
		}},
		Containerd: Containerd{
			ConfigPath: "/etc/containerd/config.toml", Socket: "/run/containerd/containerd.sock", Version: "v1.7.35",
			File: containerdconfig.File{Version: 2, NRI: true, Handlers: []containerdconfig.Handler{
				{Name: "runc", InFile: true, RuntimeType: "io.containerd.runc.v2", RuntimePath: shimPath, PodAnnotations: patterns, ContainerAnnotations: patterns},
			}},
			Loaded: []containerdconfig.Handler{{Name: "runc", RuntimeType: "io.containerd.runc.v2", RuntimePath: shimPath}},
		},
		Shims: []Shim{{Path: shimPath, Handlers: []string{"runc"}, ByName: true, Version: "1.0", Real: "/usr/bin/containerd-shim-runc-v2"}},
		NRI:   NRI{PluginSocket: "/run/directx-nri/nri.sock", Started: true, Socket: "/var/run/nri/nri.sock"},
		Kubelet: Kubelet{
			Folder: "/var/lib/kubelet/device-plugins", PodResources: "/var/lib/kubelet/pod-resources/kubelet.sock",
			Advertiser:  map[string]error{"directx.microsoft.com/display": nil, "directx.microsoft.com/compute": nil},
			Allocatable: map[string][]string{"directx.microsoft.com/display": {"GPU-0::0", "GPU-0::1"}, "directx.microsoft.com/compute": {"NPU::0"}},
		},
		Records: Records{Folder: "/var/lib/directx-nri/allocations"},
		Folders: []Folder{{Path: "/var/lib/directx-nri", What: "the records"}},
	}
}

// soundWindows returns the facts of a Windows node.
func soundWindows() Facts {
	f := sound()
	f.OS = "windows"
	f.Windows = &capabilities.Capabilities{Windows: win32.Version{Major: 10, Build: 20348, Server: true}, Schemas: []capabilities.Schema{{Major: 2, Minor: 5}}}
	f.GPUs = GPUs{List: []GPU{{Device: discovery.Device{InstanceID: "PCI-0", LocationPath: "PCIROOT(0)#PCI(1B00)", SupportsDisplay: true, System32: []discovery.RuntimeFile{{Source: "nvcuda.dll", Destination: "nvcuda.dll"}}}}}}
	f.NRI = NRI{PluginErr: readiness.ErrNotRunning}
	f.Containerd.File.NRI = false
	f.Kubelet.Allocatable = map[string][]string{"directx.microsoft.com/display": {"pci-0::0"}}
	return f
}

func soundStandalone() Facts {
	f := sound()
	f.Kubelet = Kubelet{Folder: "/var/lib/kubelet/device-plugins", FolderErr: fs.ErrNotExist}
	f.Containerd.File = containerdconfig.File{Handlers: []containerdconfig.Handler{{Name: "runc", RuntimeType: "io.containerd.runc.v2"}}}
	f.Containerd.Loaded = []containerdconfig.Handler{{Name: "runc", RuntimeType: "io.containerd.runc.v2"}}
	f.Shims[0].Handlers = nil
	f.NRI = NRI{PluginErr: readiness.ErrNotRunning, SocketErr: fs.ErrNotExist}
	return f
}

func TestSoundNodes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		facts Facts
		role  Role
		by    []ServedBy
	}{
		"NRI and shim": {sound(), RoleKubernetes, []ServedBy{ServedByNRI, ServedByShim}},
		"NRI alone": {with(sound(), func(f *Facts) {
			f.Containerd.File.Handlers[0].RuntimePath, f.Containerd.Loaded[0].RuntimePath = "", ""
			f.Shims = []Shim{{Path: shimPath, ByName: true, Err: fs.ErrNotExist, RealErr: fs.ErrNotExist}}
			f.Config.Exists = false
		}), RoleKubernetes, []ServedBy{ServedByNRI}},
		"shim alone": {with(sound(), func(f *Facts) {
			f.Containerd.File.NRI = false
			f.NRI = NRI{PluginErr: readiness.ErrNotRunning, SocketErr: fs.ErrNotExist}
		}), RoleKubernetes, []ServedBy{ServedByShim}},
		"shim by word, NRI on": {with(sound(), func(f *Facts) {
			f.ServedBy = ServedByShim
			f.NRI = NRI{PluginErr: readiness.ErrNotRunning}
		}), RoleKubernetes, []ServedBy{ServedByShim}},
		"Windows":    {soundWindows(), RoleKubernetes, []ServedBy{ServedByShim}},
		"standalone": {soundStandalone(), RoleStandalone, []ServedBy{ServedByShim}},
		"standalone with Docker's containerd": {with(soundStandalone(), func(f *Facts) {
			f.Containerd.Err, f.Containerd.WithoutCRI = errors.New("unknown service"), true
		}), RoleStandalone, []ServedBy{ServedByShim}},
		"no record yet":   {with(sound(), func(f *Facts) { f.Records.Err = fs.ErrNotExist }), RoleKubernetes, []ServedBy{ServedByNRI, ServedByShim}},
		"an old kubelet":  {with(sound(), func(f *Facts) { f.Kubelet.PodResourcesErr = errors.ErrUnsupported }), RoleKubernetes, []ServedBy{ServedByNRI, ServedByShim}},
		"versions unsaid": {with(sound(), func(f *Facts) { f.Version = "" }), RoleKubernetes, []ServedBy{ServedByNRI, ServedByShim}},
		"a changed file that is still so": {with(sound(), func(f *Facts) {
			f.Leftovers = Leftovers{Journal: "/var/lib/directx-nri/runtime-configure.json", Applied: true}
		}), RoleKubernetes, []ServedBy{ServedByNRI, ServedByShim}},
		"somebody else's handler is not loaded": {with(sound(), func(f *Facts) {
			f.Containerd.File.Handlers = append(f.Containerd.File.Handlers, containerdconfig.Handler{Name: "kata", RuntimePath: "/opt/kata"})
		}), RoleKubernetes, []ServedBy{ServedByNRI, ServedByShim}},
		"the plugin alone, and an import has handlers": {with(sound(), func(f *Facts) {
			f.ServedBy, f.Containerd.Overrides = ServedByNRI, []string{"conf.d/99-nvidia.toml is imported and has runtimes"}
		}), RoleKubernetes, []ServedBy{ServedByNRI}},
		"an import turns NRI on": {with(sound(), func(f *Facts) {
			f.ServedBy, f.Containerd.File.NRI = ServedByNRI, false
			f.Containerd.Overrides = []string{"conf.d/nri.toml is imported and has nri"}
		}), RoleKubernetes, []ServedBy{ServedByNRI}},
	} {
		v := Examine(test.facts)
		if len(v.Findings) > 0 || v.Role != test.role || !slices.Equal(v.ServedBy, test.by) || v.Result() != Sound {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

func with(f Facts, change func(*Facts)) Facts {
	change(&f)
	return f
}

var (
	errClosed = fmt.Errorf("open: %w", fs.ErrPermission)
	errGone   = fmt.Errorf("stat: %w", fs.ErrNotExist)
	errSlow   = fmt.Errorf("ask: %w", context.DeadlineExceeded)
)

// brokenNode is a node with one thing wrong, and what is to be said of it.
type brokenNode struct {
	facts Facts
	check string
	says  string
}

func failedAt(why string) FailedConfigure {
	return FailedConfigure{Record: "/var/lib/directx-nri/configure-failed.json", At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Why: why}
}

// brokenNodes returns a sound node that is broken in one way each time. What is
// said of them is also what docs/troubleshooting.md shows.
func brokenNodes() map[string]brokenNode {
	return map[string]brokenNode{
		"config.yaml has an unknown key": {with(sound(), func(f *Facts) {
			f.Config.Err = errors.New("configuration /etc/directx-nri/config.yaml: line 3: field runtime not found")
			f.GPUs = GPUs{Err: errors.New("no inventory file is named")}
			f.Shims[0].RealErr = errGone
		}), CheckConfig, "line 3: field runtime"},
		"config.yaml can be written by others": {with(sound(), func(f *Facts) {
			f.Config.Err = fmt.Errorf("check /etc/directx-nri/config.yaml: %w", durable.ErrUntrusted)
		}), CheckConfig, "others can write it"},
		"config.yaml's folder is open to others": {with(sound(), func(f *Facts) { f.Config.Err = fmt.Errorf("check /etc/directx-nri: %w", durable.ErrNotPrivate) }), CheckConfig, "not private"},
		"the inventory is broken":                {with(sound(), func(f *Facts) { f.GPUs.List, f.GPUs.Err = nil, errors.New("inventory has errors: 4:3: unknown key x") }), CheckInventory, "unknown key x"},
		"no inventory is named, and the shim needs one": {with(soundStandalone(), func(f *Facts) {
			f.GPUs = GPUs{Err: errors.New("no inventory file is named")}
		}), CheckInventory, "no inventory file"},
		"there is no GPU": {with(sound(), func(f *Facts) { f.GPUs.List = f.GPUs.List[2:] }), CheckDevices, "no GPU that a container can be given"},
		"a GPU is unhealthy": {with(sound(), func(f *Facts) {
			f.GPUs.List[0].Health.Reason = "it was disabled (22)"
			f.Kubelet.Allocatable = map[string][]string{"directx.microsoft.com/compute": {"NPU::0"}}
		}), CheckDevices, "GPU-0 (Tesla T4) cannot be used: it was disabled (22)"},
		"a GPU has no location path": {with(soundWindows(), func(f *Facts) { f.GPUs.List[0].LocationPath = "" }), CheckDevices, "no location path"},
		"a driver names no files":    {with(soundWindows(), func(f *Facts) { f.GPUs.List[0].System32 = nil }), CheckDrivers, "names no runtime files"},
		"a GPU has no device node":   {with(sound(), func(f *Facts) { f.GPUs.List[0].DeviceNodes = nil }), CheckDrivers, "names no device node"},
		"a driver's files are gone":  {with(sound(), func(f *Facts) { f.GPUs.List[0].Missing = []string{"/a.so", "/b.so", "/c.so", "/d.so"} }), CheckFiles, "/a.so, /b.so, /c.so and 1 more"},
		"two GPUs of one driver miss one": {with(sound(), func(f *Facts) {
			f.GPUs.List[0].Missing, f.GPUs.List[1].Missing = []string{"/a.so"}, []string{"/a.so"}
		}), CheckFiles, "/a.so"},
		"Windows Server 2019": {with(soundWindows(), func(f *Facts) {
			f.Windows = &capabilities.Capabilities{Windows: win32.Version{Build: 17763}, Schemas: []capabilities.Schema{{Major: 2, Minor: 1}}}
			f.Config.Value.Assignment = config.AssignByPath
		}), CheckHCS, "single devices need 2.2"},
		"config.yaml has turned bad": {with(sound(), func(f *Facts) {
			f.Config.Bad = errors.New("configuration: /etc/directx-nri/config.yaml:3: replicas: 0 is not possible")
		}), CheckConfig, "config.yaml:3: replicas: 0"},
		"no rule is for the node's GPUs": {with(sound(), func(f *Facts) {
			f.Config.Value.Resources = []config.Resource{{Name: "example.com/gpu", Match: config.Match{Descriptions: []string{"none"}}, Replicas: 1}}
			f.Kubelet.Advertiser, f.Kubelet.Allocatable = map[string]error{"example.com/gpu": nil}, nil
		}), CheckResources, "none of the configuration's resources is for a GPU of this node"},
		"a rule's resource is not registered": {with(sound(), func(f *Facts) {
			f.Config.Value.Resources = []config.Resource{{Name: "example.com/gpu", Replicas: 1}}
			f.Kubelet.Allocatable = nil
		}), CheckRegistration, "the kubelet does not offer example.com/gpu"},
		"others can write a host folder": {with(sound(), func(f *Facts) {
			f.HostFolders = []Folder{{Path: "/srv/models", Err: fmt.Errorf("check: %w", durable.ErrUntrusted)}}
		}), CheckExtraMounts, "/srv/models, which others can write to"},
		"a host folder is gone": {with(sound(), func(f *Facts) { f.HostFolders = []Folder{{Path: "/srv/models", Err: errGone}} }), CheckExtraMounts, "which is not on this node"},
		"the advertiser's address is taken": {with(sound(), func(f *Facts) {
			f.Metrics = []Metrics{{Program: "directx-advertiser", Key: "metrics.address", Address: "127.0.0.1:9400", Other: "its metrics are others"}}
			f.Kubelet.Advertiser, f.Kubelet.Allocatable = map[string]error{"directx.microsoft.com/display": errGone}, nil
		}), CheckMetrics, "another program answers at 127.0.0.1:9400, which is directx-advertiser's by metrics.address"},
		"the plugin's address is taken": {with(sound(), func(f *Facts) {
			f.Metrics = []Metrics{{Program: "directx-nri", Key: "metrics.pluginAddress", Address: "127.0.0.1:9401", Other: "its metrics are others"}}
			f.NRI.PluginErr, f.NRI.Started = readiness.ErrNotRunning, false
		}), CheckMetrics, "directx-nri's by metrics.pluginAddress"},
		"metrics are not served": {with(sound(), func(f *Facts) {
			f.Metrics = []Metrics{{Program: "directx-nri", Key: "metrics.pluginAddress", Address: "127.0.0.1:9401", Nobody: syscall.ECONNREFUSED}}
		}), CheckMetrics, "directx-nri runs and does not serve metrics"},
		"the advertiser is unwell": {with(sound(), func(f *Facts) {
			f.Metrics = []Metrics{{Program: "directx-advertiser", Address: "127.0.0.1:9400", Unhealthy: "the GPUs have not been looked at"}}
		}), CheckMetrics, "the GPUs have not been looked at"},
		"the advertiser is stopped, and so are its metrics": {with(sound(), func(f *Facts) {
			f.Metrics = []Metrics{{Program: "directx-advertiser", Address: "127.0.0.1:9400", Nobody: syscall.ECONNREFUSED}}
			f.Kubelet.Advertiser, f.Kubelet.Allocatable = map[string]error{"directx.microsoft.com/display": errGone}, nil
		}), CheckAdvertiser, "does not answer"},
		"containerd 1.6 and injection by the kubelet": {with(soundWindows(), func(f *Facts) {
			f.Config.Value.Injection, f.Containerd.Version = config.InjectByKubelet, "1.6.36"
		}), CheckVersion, "knows no devices of Windows"},
		"Windows without containers": {with(soundWindows(), func(f *Facts) {
			f.Windows = &capabilities.Capabilities{Windows: win32.Version{Build: 20348}, SchemasErr: errors.ErrUnsupported}
		}), CheckHCS, "is not there"},
		"containerd is stopped": {with(sound(), func(f *Facts) {
			f.Containerd.Err, f.Containerd.Version, f.Containerd.Loaded = syscall.ECONNREFUSED, "", nil
			f.NRI.PluginErr, f.NRI.SocketErr = readiness.ErrNotServing, errGone
		}), CheckContainerd, "cannot be reached: connection refused"},
		"containerd hangs": {with(sound(), func(f *Facts) {
			f.Containerd.Err, f.Containerd.Version, f.Containerd.Loaded = errSlow, "", nil
			f.NRI.PluginErr = readiness.ErrNotServing
		}), CheckContainerd, "does not answer"},
		"containerd without CRI":       {with(sound(), func(f *Facts) { f.Containerd.Err, f.Containerd.WithoutCRI = errors.New("unknown service"), true }), CheckContainerd, "without its CRI plugin"},
		"containerd 1.6 has no NRI":    {with(sound(), func(f *Facts) { f.Containerd.Version, f.NRI.PluginErr = "1.6.36", readiness.ErrNotServing }), CheckVersion, "has no NRI"},
		"containerd 1.5":               {with(soundWindows(), func(f *Facts) { f.Containerd.Version = "v1.5.0" }), CheckVersion, "older than 1.6"},
		"containerd 2 with shim alone": {with(sound(), func(f *Facts) { f.ServedBy, f.Containerd.Version = ServedByShim, "v2.4.2" }), CheckVersion, "by its sandbox's shim"},
		"containerd's file is no TOML": {with(sound(), func(f *Facts) {
			f.Containerd.FileErr, f.Containerd.File = errors.New("config.toml:3:1: expected"), containerdconfig.File{}
		}), CheckFile, "config.toml:3:1"},
		"an import takes over":          {with(sound(), func(f *Facts) { f.Containerd.Overrides = []string{"conf.d/x.toml is imported and has plugins.cri"} }), CheckFile, "conf.d/x.toml"},
		"annotations are not handed on": {with(sound(), func(f *Facts) { f.Containerd.File.Handlers[0].PodAnnotations = nil }), CheckAnnotations, "runc does not hand on"},
		"the file is not loaded":        {with(sound(), func(f *Facts) { f.Containerd.Loaded[0].RuntimePath = "" }), CheckLoaded, "has not loaded it so"},
		"the file was taken back, and that is not loaded": {with(sound(), func(f *Facts) {
			f.Containerd.File.Handlers[0].RuntimePath = ""
		}), CheckLoaded, "has not loaded it so"},
		"the handlers are in another file than is read": {with(sound(), func(f *Facts) {
			f.Containerd.File.Handlers = []containerdconfig.Handler{{Name: "other", RuntimeType: "io.containerd.runc.v2"}}
		}), CheckLoaded, "handler runc is not in the running containerd as"},
		"the plugin alone, and an import is broken": {with(sound(), func(f *Facts) {
			f.ServedBy, f.Containerd.BadImports = ServedByNRI, []string{"conf.d/x.toml:1:2: expected"}
		}), CheckFile, "conf.d/x.toml:1:2"},
		"the plugin is stopped, and an import has handlers": {with(sound(), func(f *Facts) {
			f.ServedBy, f.NRI.PluginErr, f.Containerd.Overrides = ServedByNRI, readiness.ErrNotRunning, []string{"conf.d/99-nvidia.toml is imported and has runtimes"}
		}), CheckPlugin, "not running"},
		"Windows' container service hangs": {with(soundWindows(), func(f *Facts) {
			f.Windows = &capabilities.Capabilities{SchemasErr: errSlow}
		}), CheckHCS, "does not answer"},
		"no handler goes through the shim": {with(soundWindows(), func(f *Facts) {
			f.Containerd.File.Handlers[0].RuntimePath, f.Containerd.Loaded[0].RuntimePath = "", ""
			f.Kubelet.Allocatable = nil
		}), CheckHandlers, "no runtime handler goes through our shim"},
		"the shim is gone":               {with(sound(), func(f *Facts) { f.Shims[0].Err, f.Shims[0].RealErr = errGone, errGone }), CheckShim, "the shim of the runtime handler runc is not there"},
		"the shim for ctr is gone":       {with(soundStandalone(), func(f *Facts) { f.Shims[0].Err = errGone }), CheckShim, "not where containerd looks for it"},
		"the shim is damaged":            {with(sound(), func(f *Facts) { f.Shims[0].Err = errors.New("exec format error") }), CheckShim, "exec format error"},
		"the shim hangs":                 {with(sound(), func(f *Facts) { f.Shims[0].Err = errSlow }), CheckShim, "does not answer to --version"},
		"the shim is of another version": {with(sound(), func(f *Facts) { f.Shims[0].Version = "0.9" }), CheckShimVersion, "version 0.9, and this is dxctl 1.0"},
		"others can write the shim":      {with(sound(), func(f *Facts) { f.Shims[0].Err = fmt.Errorf("check %s: %w", shimPath, durable.ErrUntrusted) }), CheckPermissions, "others can write it"},
		"the real shim is gone":          {with(sound(), func(f *Facts) { f.Shims[0].RealErr = errors.New("the real runtime shim is not to be had") }), CheckRealShim, "not to be had"},
		"NRI is off": {with(sound(), func(f *Facts) {
			f.Containerd.File.NRI, f.NRI.PluginErr, f.NRI.SocketErr = false, readiness.ErrNotServing, errGone
		}), CheckNRI, "NRI is off in containerd"},
		"NRI is turned off and that is not loaded": {with(sound(), func(f *Facts) { f.Containerd.File.NRI = false }), CheckNRI, "off in /etc/containerd/config.toml"},
		"NRI is turned on and that is not loaded":  {with(sound(), func(f *Facts) { f.NRI.PluginErr, f.NRI.SocketErr = readiness.ErrNotServing, errGone }), CheckNRI, "takes no NRI plugins"},
		"the plugin is stopped":                    {with(sound(), func(f *Facts) { f.NRI.PluginErr, f.NRI.Started = readiness.ErrNotRunning, false }), CheckPlugin, "not running"},
		"the plugin is not registered":             {with(sound(), func(f *Facts) { f.NRI.PluginErr = readiness.ErrNotServing }), CheckPlugin, "not connected"},
		"the plugin hangs":                         {with(sound(), func(f *Facts) { f.NRI.PluginErr = readiness.ErrNoAnswer }), CheckPlugin, "does not answer"},
		"the kubelet's socket is gone": {with(sound(), func(f *Facts) {
			f.Kubelet.SocketErr, f.Kubelet.PodResourcesErr, f.Kubelet.Allocatable = errGone, errGone, nil
		}), CheckKubelet, "takes no device plugins"},
		"there is no kubelet where one must be": {with(sound(), func(f *Facts) {
			f.Role, f.Kubelet = RoleKubernetes, Kubelet{Folder: "/var/lib/kubelet/device-plugins", FolderErr: errGone}
		}), CheckKubelet, "folder for device plugins cannot be used"},
		"the advertiser is stopped": {with(sound(), func(f *Facts) {
			for resource := range f.Kubelet.Advertiser {
				f.Kubelet.Advertiser[resource] = errGone
			}
			f.Kubelet.Allocatable = nil
		}), CheckAdvertiser, "directx-advertiser does not answer"},
		"the advertiser is not registered": {with(sound(), func(f *Facts) { delete(f.Kubelet.Allocatable, "directx.microsoft.com/display") }), CheckRegistration, "does not offer directx.microsoft.com/display"},
		"one GPU is not offered": {with(sound(), func(f *Facts) {
			f.GPUs.List[1].InstanceID, f.GPUs.List[1].SupportsDisplay = "GPU-1", true
		}), CheckRegistration, "offers directx.microsoft.com/display without GPU GPU-1"},
		"PodResources is elsewhere": {with(sound(), func(f *Facts) { f.Kubelet.PodResourcesErr = errGone }), CheckPodResources, "does not tell what it hands out"},
		"a record is damaged": {with(sound(), func(f *Facts) {
			f.Records.Damaged = []FileError{{"/var/lib/directx-nri/allocations/1f.json", errors.New("its checksum does not match")}}
		}), CheckRecords, "checksum does not match"},
		"a binding without its record":     {with(sound(), func(f *Facts) { f.Records.Orphans = []string{"/var/lib/directx-nri/allocations/1f.bound"} }), CheckRecords, "1 file(s) belong to allocations that have ended"},
		"a strange file among the records": {with(sound(), func(f *Facts) { f.Records.Strange = []string{"/var/lib/directx-nri/allocations/notes.txt"} }), CheckRecords, "none of ours: /var/lib/directx-nri/allocations/notes.txt"},
		"the record folder is open to others": {with(sound(), func(f *Facts) {
			f.Records.Err = fmt.Errorf("list /var/lib/directx-nri/allocations: %w", durable.ErrNotPrivate)
		}), CheckRecords, "not private"},
		"the state folder is open to others": {with(sound(), func(f *Facts) { f.Folders[0].Err = fmt.Errorf("check /var/lib/directx-nri: %w", durable.ErrNotPrivate) }), CheckPermissions, "not private"},
		"another file is in the place of ours": {with(sound(), func(f *Facts) {
			f.Leftovers = Leftovers{Journal: "/var/lib/directx-nri/runtime-configure.json"}
		}), CheckLeftovers, "are not there any more"},
		"the journal is damaged": {with(sound(), func(f *Facts) {
			f.Leftovers = Leftovers{Journal: "/var/lib/directx-nri/runtime-configure.json", JournalErr: errors.New("read /var/lib/directx-nri/runtime-configure.json: unexpected end of JSON input")}
		}), CheckLeftovers, "unexpected end"},
		"an installed file was changed by hand": {with(sound(), func(f *Facts) {
			f.Installed = Installed{Record: "/var/lib/directx-nri/installed-files.json", Changed: []string{"/etc/directx-nri/config.yaml"}}
		}), CheckConfig, "somebody has changed it since"},
		"an installed file is gone": {with(sound(), func(f *Facts) {
			f.Installed = Installed{Record: "/var/lib/directx-nri/installed-files.json", Missing: []string{"/etc/directx-nri/config.yaml"}}
		}), CheckLeftovers, "is not there any more"},
		"the record of installed files is damaged": {with(sound(), func(f *Facts) {
			f.Installed = Installed{Record: "/var/lib/directx-nri/installed-files.json", Err: errors.New("read which files were installed, /var/lib/directx-nri/installed-files.json: unexpected end of JSON input")}
		}), CheckLeftovers, "unexpected end"},
		"a backup is left": {with(sound(), func(f *Facts) { f.Leftovers = Leftovers{Backup: "/etc/containerd/config.toml.directx-nri.bak"} }), CheckLeftovers, "nothing says what was changed"},
		"containerd did not come back": {with(sound(), func(f *Facts) {
			f.Failed = failedAt("containerd has not loaded it after 2m0s: the runtime handler runc is not loaded; the old /etc/containerd/config.toml is back, and containerd runs with it")
			f.Containerd.File.Handlers, f.Containerd.Loaded, f.Containerd.File.NRI = nil, nil, false
			f.NRI.PluginErr = readiness.ErrNotRunning
			f.ServedBy = ServedByNRI
		}), CheckLeftovers, "containerd did not come back with what 'dxctl runtime configure' wrote, at 2026-01-02T03:04:05Z: containerd has not loaded"},
		"containerd did not come back, with the shim": {with(sound(), func(f *Facts) {
			f.Failed, f.ServedBy = failedAt("x"), ServedByShim
			f.Containerd.File.Handlers, f.Containerd.Loaded = nil, nil
		}), CheckLeftovers, "at 2026-01-02T03:04:05Z: x"},
		"a failed restart on a disk that fails": {with(sound(), func(f *Facts) {
			f.Failed = FailedConfigure{Record: "/var/lib/directx-nri/configure-failed.json", Err: errors.New("read /var/lib/directx-nri/configure-failed.json: input/output error")}
		}), CheckLeftovers, "input/output error"},
		"uninstall was broken off": {with(sound(), func(f *Facts) { f.Leftovers = Leftovers{Pending: "/var/lib/directx-nri/uninstall-pending"} }), CheckLeftovers, "handed over"},
		"containers without a shim": {with(sound(), func(f *Facts) {
			f.Leftovers = Leftovers{Abandoned: []string{"k8s.io/a"}, AbandonedBy: "/opt/old/containerd-shim-directx-v1"}
		}), CheckLeftovers, "1 container(s) run"},
		"nothing is set up, and NRI is on for others": {Facts{
			OS: "linux", GPUs: GPUs{Err: errors.New("no inventory file is named")},
			Containerd: Containerd{Version: "v2.4.2", File: containerdconfig.File{NRI: true}},
			Shims:      []Shim{{Path: shimPath, ByName: true, Err: errGone}}, NRI: NRI{PluginErr: readiness.ErrNotRunning},
			Kubelet: Kubelet{Advertiser: map[string]error{"directx.microsoft.com/display": errGone}},
		}, CheckSetup, "nothing of directx-nri is set up"},
		"nothing is set up": {Facts{
			OS: "linux", Config: ConfigFile{}, GPUs: GPUs{Err: errors.New("no inventory file is named")},
			Containerd: Containerd{Version: "v1.7.35", File: containerdconfig.File{Handlers: []containerdconfig.Handler{{Name: "runc"}}}},
			Shims:      []Shim{{Path: shimPath, ByName: true, Err: errGone, RealErr: errGone}}, NRI: NRI{PluginErr: readiness.ErrNotRunning, SocketErr: errGone},
			Records: Records{Err: errGone},
		}, CheckSetup, "nothing of directx-nri is set up"},
	}
}

// TestBrokenNodes wants that named which is wrong, and nothing else.
func TestBrokenNodes(t *testing.T) {
	t.Parallel()
	for name, test := range brokenNodes() {
		v := Examine(test.facts)
		if len(v.Findings) != 1 || v.Findings[0].Check != test.check || v.Findings[0].Severity != Problem || !strings.Contains(v.Findings[0].Problem, test.says) || v.Result() != Findings {
			t.Errorf("%s: %+v, want one finding of %s that says %q", name, v.Findings, test.check, test.says)
			continue
		}
		f := v.Findings[0]
		if f.Why == "" || f.Fix == "" || strings.Contains(f.Problem+f.Why+f.Fix+f.Object, "\n") || !slices.Contains(v.Checks, f.Check) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestWithoutPermission(t *testing.T) {
	t.Parallel()
	f := with(sound(), func(f *Facts) {
		f.Containerd.Err, f.Containerd.Loaded, f.Containerd.Version = errClosed, nil, ""
		f.NRI.PluginErr = errClosed
		f.Kubelet = Kubelet{Folder: "/var/lib/kubelet/device-plugins", FolderErr: errClosed}
		f.Records.Err = errClosed
	})
	v := Examine(f)
	if len(v.Findings) != 1 || v.Result() != NotKnown || v.Findings[0].Check != CheckAccess || !strings.Contains(v.Findings[0].Fix, "root") {
		t.Fatalf("%+v", v)
	}
	for _, what := range []string{"containerd on /run/containerd", "/var/lib/kubelet", "allocations"} {
		if !strings.Contains(v.Findings[0].Problem, what) {
			t.Errorf("it does not say %s: %s", what, v.Findings[0].Problem)
		}
	}
	f.GPUs.List[0].Missing = []string{"/a.so"}
	if v := Examine(f); v.Result() != Findings || len(v.Findings) != 2 {
		t.Errorf("with something wrong: %+v", v)
	}
	if v := Examine(with(soundWindows(), func(f *Facts) { f.Records.Err = errClosed })); len(v.Findings) != 1 || !strings.Contains(v.Findings[0].Fix, "administrator") {
		t.Errorf("on Windows: %+v", v)
	}
}

func TestNoInventoryForNRI(t *testing.T) {
	t.Parallel()
	v := Examine(with(sound(), func(f *Facts) {
		f.ServedBy = ServedByNRI
		f.GPUs = GPUs{Err: errors.New("no inventory file is named")}
	}))
	if v.Result() != NotKnown || len(v.Findings) != 1 || v.Findings[0].Check != CheckInventory {
		t.Errorf("%+v", v)
	}
}

// What closes config.yaml to others is said of what is open: the file or its folder.
func TestFixOfAnOpenConfiguration(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		os, path string
		err      error
		want     string
	}{
		"the file":             {"linux", "/etc/directx-nri/config.yaml", durable.ErrUntrusted, "chmod go-w /etc/directx-nri/config.yaml;"},
		"the folder":           {"linux", "/etc/directx-nri/config.yaml", durable.ErrNotPrivate, "chmod go-w /etc/directx-nri;"},
		"a file on Windows":    {"windows", `C:\ProgramData\directx-nri\config.yaml`, durable.ErrUntrusted, `icacls "C:\ProgramData\directx-nri" /inheritance:r`},
		"its folder, likewise": {"windows", `C:\ProgramData\directx-nri\config.yaml`, durable.ErrNotPrivate, `icacls "C:\ProgramData\directx-nri" /inheritance:r`},
	} {
		v := Examine(with(sound(), func(f *Facts) { f.OS, f.Config.Path, f.Config.Err = test.os, test.path, test.err }))
		i := slices.IndexFunc(v.Findings, func(f Finding) bool { return f.Check == CheckConfig })
		if i < 0 || !strings.Contains(v.Findings[i].Fix, test.want) {
			t.Errorf("%s: %+v, want the fix %q", name, v.Findings, test.want)
		}
	}
}

func TestSlowRecordsAreNotKnown(t *testing.T) {
	t.Parallel()
	v := Examine(with(sound(), func(f *Facts) { f.Records.Err = errSlow }))
	if v.Result() != NotKnown || len(v.Findings) != 1 || v.Findings[0].Check != CheckRecords || !strings.Contains(v.Findings[0].Fix, "--timeout") {
		t.Errorf("%+v", v)
	}
}

func TestTwoCausesAreTwoFindings(t *testing.T) {
	t.Parallel()
	v := Examine(with(sound(), func(f *Facts) {
		f.Shims[0].Version = "0.9"
		f.Records.Strange = []string{filepath.Join("x", "y")}
	}))
	if len(v.Findings) != 2 {
		t.Errorf("%+v", v.Findings)
	}
}

// What is meant to be so is no fault, and is said.
func TestNotes(t *testing.T) {
	t.Parallel()
	kubelet := func(f Facts) Facts {
		f.Config.Value.Injection = config.InjectByKubelet
		f.Containerd.File.Handlers[0].RuntimePath, f.Containerd.Loaded[0].RuntimePath = "", ""
		f.NRI = NRI{PluginErr: readiness.ErrNotRunning, SocketErr: fs.ErrNotExist}
		f.Shims = []Shim{{Path: shimPath, ByName: true, Err: fs.ErrNotExist, RealErr: fs.ErrNotExist}}
		return f
	}
	for name, test := range map[string]struct {
		facts Facts
		by    []ServedBy
		says  []string
	}{
		"nothing to say":            {sound(), []ServedBy{ServedByNRI, ServedByShim}, nil},
		"the kubelet injects":       {kubelet(sound()), []ServedBy{ServedByKubelet}, []string{"there are no extra mounts, no GPUs for ctr and nerdctl, a container that starts again has the driver's files of when it was admitted, and nobody refuses one whose GPU has gone since"}},
		"the kubelet injects paths": {kubelet(soundWindows()), []ServedBy{ServedByKubelet}, []string{"a container can have one GPU"}},
		"Windows Server 2019": {with(soundWindows(), func(f *Facts) {
			f.Windows = &capabilities.Capabilities{Windows: win32.Version{Build: 17763}, Schemas: []capabilities.Schema{{Major: 2, Minor: 1}}}
			f.GPUs.List[0].LocationPath, f.GPUs.List[0].Health = "", discovery.Health{Reason: "it has no location path", ByPathOnly: true}
		}), []ServedBy{ServedByShim}, []string{"a container is given all GPUs of the node"}},
		"rules for other nodes, and a GPU for no rule": {with(sound(), func(f *Facts) {
			f.Config.Value.Resources = []config.Resource{
				{Name: "example.com/a10", Match: config.Match{Descriptions: []string{"*A10*"}}, Replicas: 1},
				{Name: "directx.microsoft.com/display", Match: config.Match{Kind: "display"}, Replicas: 1},
				{Name: "example.com/compute-without", Match: config.Match{Kind: "none"}, Replicas: 1},
			}
		}), []ServedBy{ServedByNRI, ServedByShim}, []string{"GPU NPU, which is not offered", "resources[0] in /etc/directx-nri/config.yaml, example.com/a10, is for no GPU"}},
		"the shim by word": {with(sound(), func(f *Facts) {
			f.Config.Value.ServedBy = config.ServedByShim
			f.NRI = NRI{PluginErr: readiness.ErrNotRunning}
		}), []ServedBy{ServedByShim}, nil},
	} {
		v := Examine(test.facts)
		if v.Result() != Sound || !slices.Equal(v.ServedBy, test.by) || len(v.Notes) != len(test.says) {
			t.Errorf("%s: %+v", name, v)
			continue
		}
		for i, says := range test.says {
			if !strings.Contains(v.Notes[i], says) {
				t.Errorf("%s: %q, want %q", name, v.Notes[i], says)
			}
		}
	}
}
