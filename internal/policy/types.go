package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxReplicas is the largest number of containers that can share a GPU.
const MaxReplicas = 1024

// Resource is a rule: which GPUs an extended resource has, and how they are
// shared. Several rules may have the same name and different Match and Replicas;
// their other fields are equal.
type Resource struct {
	// Name is the extended resource, for example directx.microsoft.com/display.
	Name  string `json:"name"`
	Match Match  `json:"match"`
	// Replicas is how many containers can share a GPU, from 1 to [MaxReplicas].
	Replicas int `json:"replicas"`
	// AllocationPolicy is the order in which GPUs are allocated.
	AllocationPolicy AllocationPolicy `json:"allocationPolicy"`
	// MaxPerContainer limits the replicas that a container can request; 0 is no limit.
	MaxPerContainer int `json:"maxPerContainer,omitempty"`
	// MixedDrivers allows a container to have GPUs of different vendors or driver
	// versions. Their files have the same names, so only the first driver works.
	MixedDrivers bool `json:"mixedDrivers,omitempty"`
}

// Match selects GPUs: those that match all of its fields. The zero value of a
// field matches every GPU.
type Match struct {
	// Kind is "display" or "compute".
	Kind string `json:"kind,omitempty"`
	// Vendors are PCI vendor IDs.
	Vendors []uint16 `json:"vendors,omitempty"`
	// Descriptions and LocationPaths are patterns with * and ?, without regard to
	// case. One of them must match the whole text.
	Descriptions  []string `json:"descriptions,omitempty"`
	LocationPaths []string `json:"locationPaths,omitempty"`
	// MinMemory and MaxMemory bound the dedicated memory in bytes, inclusively; 0
	// is no bound.
	MinMemory uint64 `json:"minMemory,omitempty"`
	MaxMemory uint64 `json:"maxMemory,omitempty"`
	// MinDriver and MaxDriver bound the driver version, inclusively; the zero value
	// is no bound. A GPU whose version is unknown is outside of all bounds.
	MinDriver DriverVersion `json:"minDriver,omitzero"`
	MaxDriver DriverVersion `json:"maxDriver,omitzero"`
	// Integrated and Detachable are required values; nil matches both.
	Integrated *bool `json:"integrated,omitempty"`
	Detachable *bool `json:"detachable,omitempty"`
}

// DriverVersion is the version of a driver in Windows' four-part form.
type DriverVersion [4]uint16

// ParseDriverVersion parses one to four numbers joined by dots, and sets those
// that are left out to missing.
func ParseDriverVersion(text string, missing uint16) (DriverVersion, error) {
	version := DriverVersion{missing, missing, missing, missing}
	parts := strings.Split(text, ".")
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 16)
		if err != nil || len(parts) > len(version) {
			return DriverVersion{}, fmt.Errorf("%q is not a driver version: use 1 to 4 numbers up to 65535 joined by dots, such as 31.0.15.5222", text)
		}
		version[i] = uint16(n)
	}
	return version, nil
}

// String returns the version's numbers joined by dots.
func (v DriverVersion) String() string { return fmt.Sprintf("%d.%d.%d.%d", v[0], v[1], v[2], v[3]) }

// Less reports whether v is before w.
func (v DriverVersion) Less(w DriverVersion) bool { return slices.Compare(v[:], w[:]) < 0 }

// MarshalText implements [encoding.TextMarshaler].
func (v DriverVersion) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (v *DriverVersion) UnmarshalText(text []byte) (err error) {
	*v, err = ParseDriverVersion(string(text), 0)
	return err
}

// AllocationPolicy is the order in which GPUs are allocated.
type AllocationPolicy string

// The allocation policies.
const (
	// Distributed prefers the GPU with the fewest replicas in use.
	Distributed AllocationPolicy = "distributed"
	// Packed prefers the GPU with the most replicas in use that has enough left.
	Packed AllocationPolicy = "packed"
)

// Assignment is how Windows containers are assigned devices.
type Assignment string

// The assignment modes.
const (
	// AssignAuto is AssignByPath if the Host Compute Service supports it, and
	// otherwise AssignByClass.
	AssignAuto Assignment = "auto"
	// AssignByPath assigns single devices by their PCIe location paths.
	AssignByPath Assignment = "location-path"
	// AssignByClass assigns all GPUs of the node by their interface class.
	AssignByClass Assignment = "class-guid"
)

// DriverFiles is whether Windows containers get the files that their GPUs' drivers list.
type DriverFiles string

// The modes of driver files.
const (
	// FilesAuto is FilesMount on a Windows that does not supply driver files itself, and
	// otherwise FilesNone.
	FilesAuto DriverFiles = "auto"
	// FilesMount mounts the driver's files and those of [DefaultRuntimeFiles].
	FilesMount DriverFiles = "mount"
	// FilesNone mounts only files that the configuration adds.
	FilesNone DriverFiles = "none"
)

// Injection is how GPUs get into containers.
type Injection string

// The ways of injection.
const (
	// InjectByRuntime leaves it to the NRI plugin or the runtime shim.
	InjectByRuntime Injection = "runtime"
	// InjectByKubelet puts the GPUs into the advertiser's answer to the kubelet.
	InjectByKubelet Injection = "kubelet"
)

// ServedBy is the component that adds GPUs to containers with [InjectByRuntime].
type ServedBy string

// The components that add GPUs to containers.
const (
	ServedByNRI  ServedBy = "nri"
	ServedByShim ServedBy = "shim"
)

// DefaultServedBy returns the component for an operating system: containerd calls
// NRI plugins on Linux only.
func DefaultServedBy(nodeOS string) ServedBy {
	if nodeOS == "windows" {
		return ServedByShim
	}
	return ServedByNRI
}

// RuntimeFiles changes the driver files of containers with a vendor's GPUs.
type RuntimeFiles struct {
	// Vendor is the PCI vendor ID.
	Vendor uint16 `json:"vendor"`
	// Remove are patterns of sources, relative to the driver store path, that are
	// removed from the driver's own list and from the additions of earlier entries.
	Remove []string `json:"remove,omitempty"`
	// Add are additional files.
	Add []AddedFile `json:"add,omitempty"`
	// BuiltIn reports that the entry is of [DefaultRuntimeFiles].
	BuiltIn bool `json:"builtIn,omitempty"`
}

// AddedFile is one or more driver files that the driver does not list.
type AddedFile struct {
	// Source is a path or pattern below the driver store path.
	Source string `json:"source"`
	// Directory of the container is [System32] or [SysWOW64].
	Directory string `json:"directory"`
	// Destination is the file's name in that directory, "" for that of the source.
	Destination string `json:"destination,omitempty"`
}

// The directories of a container that runtime files are mounted into.
const (
	System32 = "System32"
	SysWOW64 = "SysWOW64"
)

// DefaultResources returns the rules of a node that configures none. Their
// Replicas are 0: the compiler sets them.
func DefaultResources() []Resource {
	return []Resource{
		{Name: "directx.microsoft.com/display", Match: Match{Kind: "display"}, AllocationPolicy: Distributed},
		{Name: "directx.microsoft.com/compute", Match: Match{Kind: "compute"}, AllocationPolicy: Distributed},
	}
}

// DefaultRuntimeFiles returns the files that drivers do not list and users expect.
func DefaultRuntimeFiles() []RuntimeFiles {
	return []RuntimeFiles{{Vendor: 0x10DE, BuiltIn: true, Add: []AddedFile{
		{Source: "nvidia-smi.exe", Directory: System32},
		{Source: "vulkaninfo-x64.exe", Directory: System32, Destination: "vulkaninfo.exe"},
		{Source: "vulkaninfo-x86.exe", Directory: SysWOW64, Destination: "vulkaninfo.exe"},
	}}}
}

// ExtraMounts is what pods can request by annotation in addition to the driver's files.
type ExtraMounts struct {
	// Where files can come from: nowhere (off), the driver store, or also hostDirectories (host-directories). Only where it is set, the environment of standalone containers can request files.
	Sources MountSources `json:"sources" yaml:"sources,omitempty" jsonschema:"enum=off,enum=driver-store,enum=host-directories,default=driver-store"`
	// Configured reports that the configuration sets Sources.
	Configured bool `json:"configured,omitempty" yaml:"-"`
	// Directories of the node that files can come from, with everything below them.
	HostDirectories []string `json:"hostDirectories,omitempty" yaml:"hostDirectories,omitempty" jsonschema:"maxItems=64"`
	// Directories of a container that files can be mounted into, with everything below them. The default is System32 and SysWOW64.
	Destinations []string `json:"destinations,omitempty" yaml:"destinations,omitempty" jsonschema:"minItems=1,maxItems=64"`
	// Largest number of extra mounts of a container.
	Max int `json:"max" yaml:"max,omitempty" jsonschema:"minimum=1,maximum=1024,default=16"`
}

// MountSources is where the files of extra mounts can come from.
type MountSources string

// The sources of extra mounts.
const (
	MountNothing     MountSources = "off"
	MountDriverStore MountSources = "driver-store"
	// MountHostDirectories is the driver store and [ExtraMounts.HostDirectories].
	MountHostDirectories MountSources = "host-directories"
)
