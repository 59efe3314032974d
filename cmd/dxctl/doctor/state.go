// Package doctor has the commands that show the state of a node and find its problems.
//
// A gatherer reads the state. [examine] is a pure function over it, so that its findings are
// tested without a broken node.
package doctor

import (
	"slices"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/win32"
	"github.com/directx-nri/directx-nri/ocispec/modes"
)

// nodeState is the state of a node. What could not be read has an error in its place, which matches
// [io/fs.ErrNotExist], [io/fs.ErrPermission] or [context.DeadlineExceeded] where that is the cause.
// The names of the fields that 'dxctl capabilities' prints are stable.
type nodeState struct {
	// OS is "windows" or "linux".
	OS         string          `json:"os"`
	Version    string          `json:"version"`           // dxctl's
	Windows    *windowsState   `json:"windows,omitempty"` // nil on other systems
	WSL        *wslState       `json:"wsl,omitempty"`     // nil outside of WSL
	Config     configState     `json:"config"`
	Containerd containerdState `json:"containerd"`
	// Shims are the files that containerd runs as the runtime shim.
	Shims []shimState `json:"shims"`
	// Bypass is why containerd bypasses the shim for the containers of pods, nil if it does not.
	Bypass error `json:"bypass,omitempty"`
	// NRIErr is the error of [readiness.CheckPlugin].
	NRIErr error `json:"nriError,omitempty"`
	// Modes are the modes in force.
	modes.Modes
	// The fields below are not set for 'dxctl capabilities'.
	GPUs    []gpu         `json:"-"`
	GPUsErr error         `json:"-"` // why they cannot be listed
	Kubelet *kubeletState `json:"-"` // nil on a node without Kubernetes
	Files   []fileProblem `json:"-"`
}

// windowsState is what an installation of Windows supports.
type windowsState struct {
	Version win32.Version `json:"windows"`
	// HCSErr is why the Host Compute Service (HCS) does not answer. It matches
	// [errors.ErrUnsupported] if there is none: the Windows feature Containers is not installed.
	HCSErr error `json:"hcsError,omitempty"`
	// HCSSchemas are the supported versions of HCS's schema, such as 2.1. It is empty if HCS does
	// not list them.
	HCSSchemas []string `json:"hcsSchemas,omitempty"`
}

// wslState has the prerequisites of GPUs in WSL.
type wslState struct {
	Kernel string `json:"kernel"`
	// Driver reports whether /dev/dxg exists, Libraries whether /usr/lib/wsl/lib exists,
	// and Systemd whether systemd runs.
	Driver    bool `json:"driver"`
	Libraries bool `json:"libraries"`
	Systemd   bool `json:"systemd"`
}

// configState is the state of the node policy and of the file that it is compiled from.
type configState struct {
	// Path is the path of config.yaml.
	Path string `json:"path"`
	// Policy is the node policy in force, or the defaults if Err is not nil.
	Policy policy.Policy `json:"policy"`
	// Applied reports whether policy.json exists.
	Applied bool `json:"applied"`
	// Err is why policy.json cannot be used.
	Err error `json:"error,omitempty"`
	// Stale describes the sources that have changed since the policy was compiled.
	Stale []string `json:"stale,omitempty"`
	// Invalid is why the sources cannot be compiled.
	Invalid error `json:"invalid,omitempty"`
}

type gpu struct {
	discovery.Device
	// Resource is the extended resource that offers it, "" for none.
	Resource string
	// Err is why no container can have the GPU. Missing are the driver files that do not exist.
	Err     error
	Missing []string
}

// containerdState is the configuration file of containerd and the state of the daemon.
type containerdState struct {
	// ConfigPath is the file, and FileErr why it cannot be read.
	ConfigPath string `json:"config"`
	FileErr    error  `json:"configError,omitempty"`
	// NRI reports whether the file enables NRI.
	NRI bool `json:"nri"`
	// Imports are the problems of imported files. They match [containerd.ErrOverridden] if the
	// file is valid.
	Imports []error `json:"imports,omitempty"`
	Socket  string  `json:"socket"`
	Version string  `json:"version,omitempty"`
	// Err is why the daemon does not answer.
	Err      error     `json:"error,omitempty"`
	Handlers []handler `json:"handlers"`
}

// marshalableError is an error whose JSON form is its message.
type marshalableError struct{ error }

// MarshalText returns the error's message.
func (e marshalableError) MarshalText() ([]byte, error) { return []byte(errlog.Text(e)), nil }
func (e marshalableError) Unwrap() error                { return e.error }

// makeErrorsMarshalable replaces the errors that 'dxctl capabilities' prints by a [marshalableError],
// unless they are nil.
func (n *nodeState) makeErrorsMarshalable() {
	errs := []*error{&n.Config.Err, &n.Config.Invalid, &n.Containerd.Err, &n.Containerd.FileErr, &n.NRIErr, &n.Bypass}
	if n.Windows != nil {
		errs = append(errs, &n.Windows.HCSErr)
	}
	for i := range n.Containerd.Imports {
		errs = append(errs, &n.Containerd.Imports[i])
	}
	for i := range n.Shims {
		errs = append(errs, &n.Shims[i].Err, &n.Shims[i].RealErr)
	}
	for _, err := range errs {
		if *err != nil {
			*err = marshalableError{*err}
		}
	}
}

// handler is a runtime handler. The names of its fields are stable.
type handler struct {
	containerdconfig.Handler
	// NotEligible is why its containers cannot have GPUs, "" if they can.
	NotEligible string `json:"notEligible,omitempty"`
	// Configured reports whether the handler uses the runtime shim in the configuration file,
	// and Annotations whether it passes the annotations of directx-nri on to the shim.
	Configured  bool `json:"configured"`
	Annotations bool `json:"annotations"`
	// Loaded reports whether the handler uses the runtime shim in the running containerd.
	Loaded bool `json:"loaded"`
}

// mergeHandlers returns the handlers of containerd's file, and those of the running
// containerd that use the runtime shim and are not in the file.
func mergeHandlers(nodeOS string, file, loaded []containerdconfig.Handler) []handler {
	list := []handler{}
	add := func(h containerdconfig.Handler, configured, loaded bool) {
		list = append(list, handler{
			Handler: h, NotEligible: errlog.Text(h.CheckEligible(nodeOS)),
			Configured: configured, Annotations: h.PassesAnnotations(), Loaded: loaded,
		})
	}
	for _, h := range file {
		add(h, h.UsesShim(), slices.ContainsFunc(loaded, func(l containerdconfig.Handler) bool {
			return l.Name == h.Name && l.UsesShim() && (!h.UsesShim() || l.RuntimePath == h.RuntimePath)
		}))
	}
	for _, l := range loaded {
		if l.UsesShim() && !slices.ContainsFunc(file, func(h containerdconfig.Handler) bool { return h.Name == l.Name }) {
			add(l, false, true)
		}
	}
	return list
}

// shimState is the state of a file that containerd runs as the runtime shim.
type shimState struct {
	Path string `json:"path"`
	// Handlers are the runtime handlers that use it; none if it is the one that
	// containerd finds for ctr and nerdctl.
	Handlers []string `json:"handlers,omitempty"`
	Version  string   `json:"version,omitempty"`
	// Err is why the shim cannot be run.
	Err error `json:"error,omitempty"`
	// RealErr is why the real shim cannot be found, or matches [realshim.ErrOwnKernel].
	RealErr error `json:"realShimError,omitempty"`
}

// kubeletState is the state of the kubelet and of its connection to the advertiser.
type kubeletState struct {
	// Dir is the kubelet's device plugin directory, and SocketErr why the kubelet
	// cannot be reached there.
	Dir       string
	SocketErr error
	// AdvertiserErr is why directx-advertiser answers neither for a resource nor about its readiness.
	AdvertiserErr error
	// PodResourcesErr is why the kubelet's PodResources API does not answer.
	PodResourcesErr error
	// Allocatable are the kubelet's healthy device IDs, by resource. A kubelet for Windows
	// lists none (GetAllocatableDevices in pkg/kubelet/cm/container_manager_windows.go).
	Allocatable map[string][]string
	// ReadyErr is why directx-advertiser is not ready, nil if it is or that is unknown.
	ReadyErr error
}

type fileProblem struct {
	kind findingKind
	path string
	err  error
}
