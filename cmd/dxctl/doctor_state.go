package main

import (
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/cri"
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
	// Shim is the runtime shim.
	Shim shimState `json:"shim"`
	// NRIErr is the error of [readiness.CheckPlugin].
	NRIErr error `json:"nriError,omitempty"`
	// NRISocketErr is why containerd does not listen on its NRI socket.
	NRISocketErr error `json:"nriSocketError,omitempty"`
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

// containerdState is the state of the daemon.
type containerdState struct {
	Socket  string `json:"socket"`
	Version string `json:"version,omitempty"`
	// Err is why the daemon does not answer.
	Err error `json:"error,omitempty"`
	// Handlers are its runtime handlers, with why their pods cannot have GPUs, "" if they can. It is nil if they
	// are unknown.
	Handlers map[string]string `json:"handlers"`
	// HandlersErr is the error of [cri.Config.Check].
	HandlersErr error `json:"handlersError,omitempty"`
}

// newContainerdState returns the state of a daemon that has answered.
func newContainerdState(socket, nodeOS string, c cri.Config) containerdState {
	state := containerdState{Socket: socket, Version: c.Version, HandlersErr: c.Check(nodeOS), Handlers: map[string]string{}}
	for _, h := range c.Handlers {
		state.Handlers[h.Name] = errlog.Text(c.CheckHandler(h.Name, nodeOS))
	}
	return state
}

// marshalableError is an error whose JSON form is its message.
type marshalableError struct{ error }

// MarshalText returns the error's message.
func (e marshalableError) MarshalText() ([]byte, error) { //nolint:unparam // of an interface
	return []byte(errlog.Text(e)), nil
}
func (e marshalableError) Unwrap() error { return e.error }

// makeErrorsMarshalable replaces the errors that 'dxctl capabilities' prints by a [marshalableError],
// unless they are nil.
func (n *nodeState) makeErrorsMarshalable() {
	errs := []*error{
		&n.Config.Err, &n.Config.Invalid, &n.Containerd.Err, &n.Containerd.HandlersErr, &n.NRIErr, &n.NRISocketErr,
		&n.Shim.Err, &n.Shim.BypassErr,
	}
	if n.Windows != nil {
		errs = append(errs, &n.Windows.HCSErr)
	}
	for _, err := range errs {
		if *err != nil {
			*err = marshalableError{*err}
		}
	}
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
