// Package doctor finds out whether a node is set up for containers with GPUs, and
// has a remedy for each problem.
//
// Package inspect has the command and gathers the facts of a node. [Examine] is a pure
// function over them, so that its findings are tested without a broken node.
package doctor

import (
	"errors"
	"slices"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/capabilities"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// Facts is the state of a node. What could not be read has an error in its place,
// which matches [io/fs.ErrNotExist], [io/fs.ErrPermission] or
// [context.DeadlineExceeded] where that is the cause. The names of the fields that
// 'dxctl capabilities' prints are stable.
type Facts struct {
	// OS is "windows" or "linux".
	OS         string                     `json:"os"`
	Version    string                     `json:"version"`           // dxctl's
	Windows    *capabilities.Capabilities `json:"windows,omitempty"` // nil on other systems
	WSL        *WSL                       `json:"wsl,omitempty"`     // nil outside of WSL
	Config     Config                     `json:"config"`
	Containerd Containerd                 `json:"containerd"`
	// Shims are the files that containerd runs as our runtime shim.
	Shims []Shim `json:"shims"`
	// NotServed is why the containers of pods are not served, nil if they are.
	NotServed error `json:"notServed,omitempty"`
	// NRIErr is the result of [readiness.Check].
	NRIErr error `json:"nriError,omitempty"`
	// Modes are those in force.
	capabilities.Modes
	// The rest is not gathered for 'dxctl capabilities'.
	GPUs    GPUs     `json:"-"`
	Kubelet *Kubelet `json:"-"` // nil on a node without Kubernetes
	Files   []File   `json:"-"`
}

// WSL is what GPUs in WSL depend on.
type WSL struct {
	Kernel string `json:"kernel"`
	// Driver reports whether there is /dev/dxg, Libraries whether there is
	// /usr/lib/wsl/lib, and Systemd whether systemd runs.
	Driver    bool `json:"driver"`
	Libraries bool `json:"libraries"`
	Systemd   bool `json:"systemd"`
}

// Config is the node policy and the file that it is compiled from.
type Config struct {
	// Path is config.yaml.
	Path string `json:"path"`
	// Policy is the node policy in force, or the defaults if Err is not nil.
	Policy policy.Policy `json:"policy"`
	// Applied reports whether there is a policy.json.
	Applied bool `json:"applied"`
	// Err is why policy.json cannot be used.
	Err error `json:"error,omitempty"`
	// Stale describes the sources that have changed since the policy was compiled.
	Stale []string `json:"stale,omitempty"`
	// Invalid is why they cannot be compiled.
	Invalid error `json:"invalid,omitempty"`
}

// GPUs is the result of discovery.
type GPUs struct {
	// Inventory is the inventory file, "" if the GPUs are discovered.
	Inventory string
	List      []GPU
	Err       error
}

// GPU is a device of the node.
type GPU struct {
	discovery.Device
	// Resource is the extended resource that offers it, "" for none.
	Resource string
	// Err is why no container can have it, and Missing are files of the driver that
	// containers do not get.
	Err     error
	Missing []string
}

// Containerd is the configuration file of containerd and the state of the daemon.
type Containerd struct {
	// ConfigPath is the file, and FileErr why it cannot be read.
	ConfigPath string `json:"config"`
	FileErr    error  `json:"configError,omitempty"`
	// NRI reports whether the file enables NRI.
	NRI bool `json:"nri"`
	// Imports are the problems of imported files. They match [ErrOverridden] if the
	// file is valid.
	Imports []error `json:"imports,omitempty"`
	Socket  string  `json:"socket"`
	Version string  `json:"version,omitempty"`
	// Err is why the daemon does not answer.
	Err      error     `json:"error,omitempty"`
	Handlers []Handler `json:"handlers"`
}

// textError is an error whose JSON form is its message.
type textError struct{ error }

// MarshalText returns the error's message.
func (e textError) MarshalText() ([]byte, error) { return []byte(e.Error()), nil }
func (e textError) Unwrap() error                { return e.error }

// AsText gives errors a JSON form, their message.
func AsText(errs ...*error) {
	for _, err := range errs {
		if *err != nil {
			*err = textError{*err}
		}
	}
}

// ErrOverridden reports that an imported file takes precedence over our settings.
var ErrOverridden = errors.New("replaces what is configured there")

// Handler is a runtime handler. The names of its fields are stable.
type Handler struct {
	containerdconfig.Handler
	// NotEligible is why its containers cannot have GPUs, "" if they can.
	NotEligible string `json:"notEligible,omitempty"`
	// Routed reports whether it uses the shim by the configuration file, and
	// Annotations whether the shim gets our annotations.
	Routed      bool `json:"routed"`
	Annotations bool `json:"annotations"`
	// Loaded reports whether it uses the shim in the running containerd.
	Loaded bool `json:"loaded"`
}

// Handlers returns the handlers of containerd's file, and those of the running
// containerd that use our shim and are not in the file.
func Handlers(os string, file, loaded []containerdconfig.Handler) []Handler {
	list := []Handler{}
	add := func(h containerdconfig.Handler, routed, isLoaded bool) {
		handler := Handler{Handler: h, Routed: routed, Annotations: h.PassesAnnotations(), Loaded: isLoaded}
		if err := h.CheckEligible(os); err != nil {
			handler.NotEligible = err.Error()
		}
		list = append(list, handler)
	}
	for _, h := range file {
		add(h, h.Ours(), slices.ContainsFunc(loaded, func(l containerdconfig.Handler) bool {
			return l.Name == h.Name && l.Ours() && (!h.Ours() || l.RuntimePath == h.RuntimePath)
		}))
	}
	for _, l := range loaded {
		if l.Ours() && !slices.ContainsFunc(file, func(h containerdconfig.Handler) bool { return h.Name == l.Name }) {
			add(l, false, true)
		}
	}
	return list
}

// Shim is a file of our runtime shim.
type Shim struct {
	Path string `json:"path"`
	// Handlers are the runtime handlers that use it; none if it is the one that
	// containerd finds for ctr and nerdctl.
	Handlers []string `json:"handlers,omitempty"`
	Version  string   `json:"version,omitempty"`
	// Err is why it could not be run.
	Err error `json:"error,omitempty"`
	// RealErr is why the real shim that it calls was not found.
	RealErr error `json:"realShimError,omitempty"`
}

// Kubelet is the kubelet and its connection with the advertiser.
type Kubelet struct {
	// Dir is the kubelet's device plugin directory, and SocketErr why the kubelet
	// cannot be reached there.
	Dir       string
	SocketErr error
	// RestartErr is why the kubelet would not start again.
	RestartErr error
	// AdvertiserErr is why directx-advertiser does not answer for a resource.
	AdvertiserErr error
	// PodResourcesErr is why the kubelet's PodResources API does not answer.
	PodResourcesErr error
	// Allocatable are the kubelet's healthy device IDs, by resource. A kubelet for Windows
	// lists none (GetAllocatableDevices in pkg/kubelet/cm/container_manager_windows.go).
	Allocatable map[string][]string
	// ReadyErr is why directx-advertiser is not ready, nil if it is or that is unknown.
	ReadyErr error
}

// File is a file or directory, and its problem unless Err is nil.
type File struct {
	Kind FileKind
	Path string
	Err  error
}

// FileKind is the check of a file, and the consequence and remedy of a problem with it.
type FileKind struct{ check, why, fix string }

// The kinds of files.
//
//nolint:gochecknoglobals // These are constants.
var (
	Private        = FileKind{CheckPermissions, "other users can change what containers get, or pretend to be the kubelet, directx-advertiser or directx-nri", "check the disk"}
	HostDirectory  = FileKind{CheckPermissions, "pods with a GPU that request a file of it do not start, or get what other users wrote", "create it, or remove it from {config}"}
	Record         = FileKind{CheckRecords, "a container whose record cannot be used does not start", "delete its pod, then the file: {remove}"}
	Journal        = FileKind{CheckLeftovers, "'dxctl runtime unconfigure' cannot restore containerd's configuration", "compare it with {containerd}; if you do not need its content: {remove}"}
	FailedRestart  = FileKind{CheckLeftovers, "the old configuration is in force, and the same change is not tried again for an hour", "see containerd's log; to try again now, set another --restart-timeout"}
	Unanswered     = FileKind{CheckPermissions, "problems with them are not detected", "check the disks of the state directory, the inventory and extraMounts.hostDirectories"}
	PendingRestart = FileKind{CheckLeftovers, "containerd may not have loaded its configuration, or still use a shim that is being removed", "run the command again, with --restart"}
)

// The severities of findings.
const (
	Problem = "problem" // something is wrong
	Unknown = "unknown" // it could not be checked
)

// Finding is a problem of a node. The names of its fields are stable.
type Finding struct {
	Check    string `json:"check"`
	Severity string `json:"severity"`
	// Object is the file, device or runtime handler concerned.
	Object string `json:"object,omitempty"`
	// Problem, Why (the consequence) and Fix (the remedy) are a line each.
	Problem string `json:"problem"`
	Why     string `json:"why"`
	Fix     string `json:"fix"`
}
