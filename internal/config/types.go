package config

// Config is what config.yaml says, with its defaults in place and everything
// checked. A value is never changed once it is made: what reads the file again
// makes a new one.
type Config struct {
	// StateDir is our folder that survives a reboot.
	StateDir string
	// RuntimeDir is our folder for sockets.
	RuntimeDir string
	// Inventory is the file that describes this node's GPUs. "" stands for the
	// GPUs that Windows tells of, and on Linux for none that are known.
	Inventory string
	// HostRoot is where the node's root directory is mounted, for a plugin that
	// runs in a container.
	HostRoot string
	// ContainerOS is the operating system of the node's containers: "windows" or
	// "linux".
	ContainerOS string
	// ServedBy is who gives containers their GPUs where Injection is
	// [InjectByRuntime]: "nri", the plugin, or "shim", the runtime shim.
	ServedBy string
	// FailOnInitError has the advertiser end when there is no GPU at the start.
	FailOnInitError bool
	Kubelet         Kubelet
	Containerd      Containerd
	Shim            Shim
	Log             Log
	// MetricsAddress is the address, host:port, that metrics and health are
	// served at by the advertiser (and, PluginMetricsAddress, by the NRI plugin).
	// "" serves none.
	MetricsAddress, PluginMetricsAddress string

	// Resources are the rules that say which GPUs a resource name holds, in order:
	// a GPU belongs to the first that matches, and to none when none does. They
	// are never empty.
	Resources []Resource
	// Assignment says how containers are given devices.
	Assignment Assignment
	// Injection says who gives containers their GPUs.
	Injection Injection
	// RuntimeFiles change which files a driver's containers get, in order; more
	// than one may be of the same vendor.
	RuntimeFiles []RuntimeFiles
	ExtraMounts  ExtraMounts
	// VisibilityHints has containers told which GPUs are theirs, by variables.
	VisibilityHints bool
}

// Kubelet is where the kubelet's sockets are.
type Kubelet struct {
	// DevicePlugins is the kubelet's folder for device plugins.
	DevicePlugins string
	// PodResources is the PodResources socket, on Windows a named pipe.
	PodResources string
}

// Containerd is where containerd's sockets are.
type Containerd struct {
	// NRISocket is containerd's socket for NRI plugins, "" where it calls none.
	NRISocket string
	// NRIIndex is the plugin's place among the others, "00" to "99".
	NRIIndex string
	// CRISocket is containerd's CRI socket, on Windows a named pipe.
	CRISocket string
}

// Shim is what the runtime shim is told.
type Shim struct {
	// Runtime is the real shim: an absolute path, or a file name that is looked
	// for beside our shim and on PATH. "" stands for the system's usual one.
	Runtime string
	// Log is the file that our shim tells in what it did.
	Log string
}

// Log is what the daemons' log is like.
type Log struct {
	// Level is "error", "warn", "info" or "debug".
	Level string
	// Format is "text" or "json".
	Format string
}

// Resource is one rule: which GPUs an extended resource holds, and how they are
// shared. Several rules may have one name, with different Match and Replicas; the
// other fields are then the same in each.
type Resource struct {
	// Name is the extended resource's, for example directx.microsoft.com/display.
	Name  string
	Match Match
	// Replicas is how many containers may share a GPU, from 1 to 1,024.
	Replicas int
	// Policy says which GPUs are given first.
	Policy AllocationPolicy
	// MaxPerContainer is how many replicas one container may ask for; 0 is no
	// limit.
	MaxPerContainer int
	// ExclusiveRequests has a request for a multiple of Replicas be one for that
	// many whole GPUs, each with nobody else on it: it is met so or refused.
	ExclusiveRequests bool
	// MixedDrivers lets one container have GPUs of different vendors or driver
	// versions. Their files have the same names, so that only the first one's work.
	MixedDrivers bool
}

// Match says which GPUs a rule is for: those that all of its fields fit. A field's
// zero value fits every GPU.
type Match struct {
	// Kind is "display" or "compute".
	Kind string
	// Vendors are PCI vendor IDs.
	Vendors []uint16
	// Descriptions and LocationPaths are globs, * and ?, of which one must fit the
	// whole text, whatever its case.
	Descriptions, LocationPaths []string
	// MinMemory and MaxMemory bound the dedicated memory in bytes, both included;
	// 0 is no bound.
	MinMemory, MaxMemory uint64
	// MinDriver and MaxDriver bound the driver's version, both included; the zero
	// value is no bound. A GPU whose version is not known is in no bounds.
	MinDriver, MaxDriver DriverVersion
	// Integrated and Detachable, where not nil, are what the GPU must be.
	Integrated, Detachable *bool
}

// DriverVersion is a driver's version in Windows' four-part form.
type DriverVersion [4]uint16

// AllocationPolicy says which GPUs are given first.
type AllocationPolicy string

// The allocation policies.
const (
	// Distributed gives the GPU with the fewest replicas in use.
	Distributed AllocationPolicy = "distributed"
	// Packed gives the GPU with the most replicas in use that has enough.
	Packed AllocationPolicy = "packed"
)

// Assignment is how containers are given devices.
type Assignment string

// The ways of assignment.
const (
	// AssignAuto takes AssignByPath where the Host Compute Service can, and
	// otherwise AssignByClass.
	AssignAuto Assignment = "auto"
	// AssignByPath gives single devices, by their PCIe location paths.
	AssignByPath Assignment = "location-path"
	// AssignByClass gives all GPUs of the node, by their interface class.
	AssignByClass Assignment = "class-guid"
)

// Injection is who gives containers their GPUs.
type Injection string

// The ways of injection.
const (
	// InjectByRuntime: the NRI plugin or the runtime shim, when the container is
	// created.
	InjectByRuntime Injection = "runtime"
	// InjectByKubelet: the advertiser's answer to the kubelet.
	InjectByKubelet Injection = "kubelet"
)

// RuntimeFiles changes which files the containers of a vendor's GPUs get.
type RuntimeFiles struct {
	// Vendor is the PCI vendor ID.
	Vendor uint16
	// Remove are globs of sources, relative to the driver store path: files that
	// are left out of what the driver lists, and of what is added by earlier
	// entries.
	Remove []string
	// Add are further files.
	Add []AddedFile
}

// AddedFile is one or more driver files that the driver does not list.
type AddedFile struct {
	// Source is a glob relative to the driver store path.
	Source string
	// Folder is "System32" or "SysWOW64".
	Folder string
	// Destination is the file's name there. "" keeps the source's; a Source with *
	// or ? has none.
	Destination string
}

// ExtraMounts is what pods may ask for beside what the driver lists.
type ExtraMounts struct {
	Sources MountSources
	// HostFolders are the absolute folders that [MountHostFolders] allows besides the
	// driver store.
	HostFolders []string
	// Destinations are the absolute folders of a container that files may be mounted
	// into, with all that is below them; System32 and SysWOW64 among them are for
	// new names only. Without any: System32 and SysWOW64.
	Destinations []string
	// Max is how many a container may have.
	Max int
}

// MountSources is where the files may come from that a pod asks for.
type MountSources string

// The sources of extra mounts.
const (
	MountNothing     MountSources = "off"
	MountDriverStore MountSources = "driver-store"
	// MountHostFolders: the driver store and the folders of
	// [ExtraMounts.HostFolders].
	MountHostFolders MountSources = "host-folders"
)
