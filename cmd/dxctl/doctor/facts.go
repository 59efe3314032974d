// Package doctor finds out whether a node is set up for containers with GPUs, and
// has a remedy for each problem.
//
// The facts of a node are gathered by the caller. [Examine] is a pure function over
// them, so that its findings are tested without a broken node.
package doctor

import (
	"time"

	"directx-nri/discovery"
	"directx-nri/internal/capabilities"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/policy"
)

// Role is what a node is used for.
type Role string

// The roles. RoleAuto stands for the role that the facts indicate.
const (
	RoleAuto       Role = "auto"
	RoleKubernetes Role = "kubernetes"
	RoleStandalone Role = "standalone"
)

// ServedBy is the component that adds GPUs to containers.
type ServedBy string

// The components. ServedByAuto stands for those that the facts indicate.
const (
	ServedByAuto    ServedBy = "auto"
	ServedByNRI     ServedBy = "nri"
	ServedByShim    ServedBy = "shim"
	ServedByKubelet ServedBy = "kubelet"
)

// Facts is the state of a node. What could not be read has an error in its place,
// which matches [io/fs.ErrNotExist], [io/fs.ErrPermission] or
// [context.DeadlineExceeded] where that is the cause.
type Facts struct {
	// OS is "windows" or "linux".
	OS string
	// Version is dxctl's version, "" if unknown.
	Version string
	// Role and ServedBy are the caller's choice.
	Role     Role
	ServedBy ServedBy

	Config     Config
	GPUs       GPUs
	Windows    *capabilities.Capabilities // nil on other systems
	Containerd Containerd
	// Shims are the files that containerd runs as our runtime shim.
	Shims   []Shim
	NRI     NRI
	Kubelet Kubelet
	Records Records
	// Access has the files and directories that only administrators may write.
	Access []Access
	// Leftovers are the remains of interrupted commands.
	Leftovers Leftovers
}

// Config is the node policy and the file that it is compiled from.
type Config struct {
	// Path is config.yaml.
	Path string
	// Policy is the node policy in force, or the defaults if Err is not nil.
	Policy policy.Policy
	// Applied reports whether there is a policy.json.
	Applied bool
	// Err is why policy.json cannot be used.
	Err error
	// Stale describes the sources that have changed since the policy was compiled.
	Stale []string
	// Invalid is why they cannot be compiled.
	Invalid error
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
	// Missing are files and device nodes of a container that are not on the node.
	Missing []string
}

// Containerd is the configuration file of containerd and the state of the daemon.
type Containerd struct {
	ConfigPath string
	File       containerdconfig.File
	FileErr    error
	// Overrides are imported files that replace what is configured in File.
	Overrides []string
	// BadImports are imported files that cannot be used.
	BadImports []string

	Socket  string
	Version string
	// Loaded are the handlers of the running daemon.
	Loaded []containerdconfig.Handler
	// Err is why the daemon does not answer.
	Err error
	// WithoutCRI reports whether its CRI plugin is disabled.
	WithoutCRI bool
}

// Shim is a file of our runtime shim.
type Shim struct {
	Path string
	// Handlers are the runtime handlers that use it; none if it is the one that
	// containerd finds for ctr and nerdctl.
	Handlers []string
	Version  string
	// Err is why it could not be run.
	Err error
	// RealErr is why the real shim that it calls was not found.
	RealErr error
}

// NRI is the connection of the NRI plugin with containerd.
type NRI struct {
	// PluginSocket is the plugin's readiness socket; Started reports whether it exists.
	PluginSocket string
	Started      bool
	// PluginErr is of [readiness.Check].
	PluginErr error
	// Socket is containerd's NRI socket. SocketErr is why containerd does not listen
	// there; it is looked at only if the plugin is not registered.
	Socket    string
	SocketErr error
}

// Kubelet is the kubelet and its connection with the advertiser.
type Kubelet struct {
	// Dir is the kubelet's device plugin directory.
	Dir    string
	DirErr error
	// SocketErr is why the kubelet cannot be reached there.
	SocketErr error
	// Advertiser has, for each resource, why the advertiser does not answer.
	Advertiser map[string]error
	// PodResources is the kubelet's PodResources socket.
	PodResources    string
	PodResourcesErr error
	// Allocatable are the kubelet's healthy device IDs, by resource.
	Allocatable map[string][]string
}

// Records is the store of allocation records.
type Records struct {
	Dir string
	Err error
	// Damaged are records that cannot be used.
	Damaged []FileError
}

// FileError is a file and its problem.
type FileError struct {
	Path string
	Err  error
}

// Access is a file or directory that only administrators may write.
type Access struct {
	Path string
	Dir  bool
	// Err matches [durable.ErrNotPrivate] or [durable.ErrUntrusted] if others can
	// write it.
	Err error
	// Why is the consequence of that.
	Why string
}

// Leftovers are the remains of interrupted commands. Paths are "" if there is none.
type Leftovers struct {
	// Journal is the record of 'dxctl runtime configure'. Applied reports whether its
	// changes are still in containerd's file.
	Journal string
	Applied bool
	// Backup is a copy of containerd's file without a journal.
	Backup string
	// Failed is the record of a restart of containerd that failed at FailedAt.
	Failed      string
	FailedAt    time.Time
	FailedCause string
	// Damaged are records that cannot be used.
	Damaged []FileError
	// Pending reports that containers were handed over to the real shim and
	// containerd was not restarted afterward.
	Pending string
	// Abandoned are containers whose shim, AbandonedBy, is gone.
	Abandoned   []string
	AbandonedBy string
}

// Severity is the certainty of a finding.
type Severity string

// The severities.
const (
	// Problem is something that is wrong.
	Problem Severity = "problem"
	// Unknown is something that could not be checked.
	Unknown Severity = "unknown"
)

// Finding is a problem of a node. The names of its fields are stable.
type Finding struct {
	// Check is the name of the check: one of [Checks].
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// Object is the file, device or runtime handler concerned.
	Object string `json:"object,omitempty"`
	// Problem, Why (the consequence) and Fix (the remedy) are a line each.
	Problem string `json:"problem"`
	Why     string `json:"why"`
	Fix     string `json:"fix"`
}
