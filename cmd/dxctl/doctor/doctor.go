// Package doctor looks whether a node is set up for containers with GPUs, from
// its devices to the kubelet, and says of each thing that is wrong what to do.
//
// [Gather] looks and concludes nothing; [Judge] concludes and looks at nothing.
// So what is said of a broken node is tested without one.
package doctor

import (
	"time"

	"directx-nri/discovery"
	"directx-nri/internal/capabilities"
	"directx-nri/internal/config"
	"directx-nri/internal/containerdconfig"
)

// Role is what a node is for.
type Role string

// The roles. RoleAuto has the node's role be told from what is there.
const (
	RoleAuto       Role = "auto"
	RoleKubernetes Role = "kubernetes"
	RoleStandalone Role = "standalone"
)

// ServedBy is who gives a pod's containers their GPUs.
type ServedBy string

// Who may. ServedByAuto has it be told from what is there.
const (
	ServedByAuto    ServedBy = "auto"
	ServedByNRI     ServedBy = "nri"
	ServedByShim    ServedBy = "shim"
	ServedByKubelet ServedBy = "kubelet"
)

// Facts is what was seen of a node. Each thing that could not be seen has the
// error in its place; errors match [io/fs.ErrNotExist], [io/fs.ErrPermission]
// and [context.DeadlineExceeded] where these are what is wrong.
type Facts struct {
	// OS is the node's operating system, "windows" or "linux".
	OS string
	// Version is that of this program, "" when it does not know.
	Version string
	// Role and ServedBy are what the caller says of the node.
	Role     Role
	ServedBy ServedBy

	Config     ConfigFile
	GPUs       GPUs
	Windows    *capabilities.Capabilities // nil on other systems
	Containerd Containerd
	// Shims are the files by which containerd runs our runtime shim, or would.
	Shims   []Shim
	NRI     NRI
	Kubelet Kubelet
	Records Records
	Folders []Folder
	// HostFolders are those of extraMounts.hostFolders, if pods may have files of them.
	// Err is why one cannot be looked at, or matches [durable.ErrUntrusted].
	HostFolders []Folder
	// Metrics are the addresses that our programs are to serve metrics at.
	Metrics   []Metrics
	Leftovers Leftovers
	Installed Installed
	Failed    FailedConfigure
}

// ConfigFile is our config.yaml.
type ConfigFile struct {
	Path   string
	Exists bool
	// Value has the defaults where there is no file, or an unusable one, and what
	// the last good copy says where that is in force: then Bad is what is wrong with
	// the file, and Err is nil.
	Value config.Config
	Bad   error
	Err   error
}

// GPUs is what discovery says.
type GPUs struct {
	// Inventory is the file they are described in, "" where the node is asked.
	Inventory string
	List      []GPU
	Err       error
}

// GPU is a device, and what of its files is not there.
type GPU struct {
	discovery.Device
	// Missing are files and device nodes that a container would be given and
	// that are not on this node.
	Missing []string
	// FilesErr is why its files could not be looked for.
	FilesErr error
}

// Containerd is its configuration file, and what the running one says.
type Containerd struct {
	ConfigPath string
	File       containerdconfig.File
	// FileErr is why the file cannot be used: unreadable, or not TOML.
	FileErr error
	// Overrides tells of imported files that take the place of what is
	// configured.
	Overrides []string
	// BadImports tells of imported files that cannot be used.
	BadImports []string

	Socket string
	// Version is that of the running containerd, "v1.7.35".
	Version string
	Loaded  []containerdconfig.Handler
	// Err is why the running one does not tell. WithoutCRI tells that this is
	// because its CRI plugin is off.
	Err        error
	WithoutCRI bool
}

// Shim is one file of our runtime shim.
type Shim struct {
	Path string
	// Handlers are the runtime handlers that run it; ByName tells that it is what
	// containerd finds for ctr and nerdctl.
	Handlers []string
	ByName   bool
	// Version is what it answers to --version.
	Version string
	// Err is why it cannot be run: not there, no program, or a file that others
	// can change and that was not run for that reason.
	Err error
	// Real is the real shim that it would call.
	Real    string
	RealErr error
}

// NRI is the way to our NRI plugin.
type NRI struct {
	// PluginSocket is where our plugin answers whether it is registered; Started
	// tells that something is there.
	PluginSocket string
	Started      bool
	// PluginErr is nil when the plugin is registered with containerd, and else of
	// [readiness.Check].
	PluginErr error
	// Socket is containerd's socket for plugins, and SocketErr why nobody answers
	// there. It is looked at when the plugin is not registered.
	Socket    string
	SocketErr error
}

// Kubelet is the kubelet, and our device plugin at it.
type Kubelet struct {
	// Folder is the kubelet's for device plugins.
	Folder    string
	FolderErr error
	// SocketErr is why the kubelet cannot be reached there.
	SocketErr error
	// Advertiser tells by resource why our device plugin does not answer.
	Advertiser map[string]error
	// PodResources is the kubelet's socket of that name, and Allocatable the
	// device IDs that the kubelet may hand out, by resource.
	PodResources    string
	Allocatable     map[string][]string
	PodResourcesErr error
}

// Records is the store of allocation records.
type Records struct {
	Folder string
	// Err is why it could not be looked at, such as a folder that others can
	// write to, which matches [durable.ErrNotPrivate].
	Err error
	// Damaged are files whose content cannot be used, and Strange those that are
	// none of ours.
	Damaged []FileError
	Strange []string
	// Orphans belong to a record that is gone.
	Orphans []string
}

// FileError is a file and what is wrong with it.
type FileError struct {
	Path string
	Err  error
}

// Folder is one of our folders that is there.
type Folder struct {
	Path string
	// What is in it, for a person.
	What string
	Err  error
}

// Installed are the configuration files that 'dxctl config install' has put on the
// node.
type Installed struct {
	// Record is the file that tells which they are, "" when there are none.
	Record string
	// Err is why it cannot be used.
	Err error
	// Changed are those that somebody has changed since, Missing those that
	// somebody has removed.
	Changed, Missing []string
}

// FailedConfigure is a change by 'dxctl runtime configure' with which containerd did
// not come back, so that the same is not tried again for a while.
type FailedConfigure struct {
	// Record is the file that tells of it, "" when there is none.
	Record string
	// At is when that was, and Why what was wrong then.
	At  time.Time
	Why string
	// Err is why the file cannot be read.
	Err error
}

// Leftovers are what setting up or removing leaves when it is broken off.
type Leftovers struct {
	// Journal is the file that has what was changed in containerd's
	// configuration, "" when there is none. Applied tells that it is still so.
	Journal string
	Applied bool
	// JournalErr is why it cannot be used.
	JournalErr error
	// Backup is a copy of containerd's configuration without a journal, "" when
	// there is none.
	Backup string
	// Pending is a file that tells that containers were handed over to the real
	// shim, and containerd was not restarted since; "" when there is none.
	Pending string
	// Abandoned are containers that run and whose shim is gone, and AbandonedBy
	// that shim.
	Abandoned   []string
	AbandonedBy string
}

// Severity says how sure a finding is.
type Severity string

// The severities.
const (
	// Problem is wrong.
	Problem Severity = "problem"
	// Unknown could not be looked at.
	Unknown Severity = "unknown"
)

// Finding is one thing that is wrong with a node. Its fields' names are for
// scripts, and stay.
type Finding struct {
	// Check is the name of what was looked at: one of [Checks].
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// Object is what it is about: a file, a device, a runtime handler.
	Object string `json:"object,omitempty"`
	// Problem is what is wrong, Why what comes of it, Fix what to type or do. One
	// line each.
	Problem string `json:"problem"`
	Why     string `json:"why"`
	Fix     string `json:"fix"`
}
