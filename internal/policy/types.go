package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/directx-nri/directx-nri/internal/pci"
)

// MaxReplicas is the largest number of containers that can share a GPU.
const MaxReplicas = 1024

// The comments of fields with YAML names are their descriptions in docs/configuration.md and in the
// JSON schema. The jsonschema tags are the limits of their values in config.yaml.

// ResourceRule is a rule that defines which GPUs an extended resource has, and how they are shared.
// Several rules can have the same name. Then only their fields Match and Replicas differ.
type ResourceRule struct {
	// Extended resource that pods request.
	Name string `json:"name" yaml:"name" jsonschema:"required,maxLength=308,format=resource,example=example.com/t4"`
	// Match selects the rule's GPUs: those that match all of its keys.
	Match Match `json:"match" yaml:"match,omitempty"`
	// Number of containers that can share a GPU. Default: the top-level replicas.
	Replicas int `json:"replicas" yaml:"replicas,omitempty" jsonschema:"minimum=1,maximum=1024"`
	// Which GPU is allocated first: the least used (distributed), or the most used that has a
	// replica left (packed).
	AllocationPolicy AllocationPolicy `json:"allocationPolicy" yaml:"allocationPolicy,omitempty" jsonschema:"enum=distributed,enum=packed,default=distributed"`
	// Limits the replicas that a container can request.
	MaxPerContainer int `json:"maxPerContainer,omitempty" yaml:"maxPerContainer,omitempty" jsonschema:"minimum=1,maximum=1048576"`
	// Whether a container can have GPUs of different drivers, whose files have the same names.
	MixedDrivers MixedDrivers `json:"mixedDrivers" yaml:"mixedDrivers,omitempty" jsonschema:"enum=refuse,enum=allow,default=refuse"`
}

// Match selects GPUs: those that match all of its fields. The zero value of a field matches every
// GPU.
type Match struct {
	// GPUs with Direct3D 11 or 12 graphics (display), or compute-only devices (MCDM).
	Kind string `json:"kind,omitempty" yaml:"kind,omitempty" jsonschema:"enum=display,enum=compute"`
	// amd, intel, microsoft, nvidia, qualcomm, a PCI vendor ID such as 0x10DE, or a list.
	Vendors []pci.Vendor `json:"vendor,omitempty" yaml:"vendor,omitempty" jsonschema:"minItems=1,format=vendor" jsonschema_extras:"shorthand=true"`
	// Pattern for the GPU's name, with * and ?, not case-sensitive; or a list.
	Descriptions []string `json:"description,omitempty" yaml:"description,omitempty" jsonschema:"minItems=1,maxLength=256,format=pattern,example=NVIDIA Tesla T4*" jsonschema_extras:"shorthand=true"`
	// DedicatedMemory bounds the GPU's own memory.
	DedicatedMemory MemoryBounds `json:"dedicatedMemory,omitzero" yaml:"dedicatedMemory,omitempty"`
	// DriverVersion bounds the version of the driver. An unknown one does not match.
	DriverVersion DriverBounds `json:"driverVersion,omitzero" yaml:"driverVersion,omitempty"`
	// Whether the GPU shares the processor's memory.
	Integrated *bool `json:"integrated,omitempty" yaml:"integrated,omitempty"`
	// Whether the GPU can be unplugged while the node runs.
	Detachable *bool `json:"detachable,omitempty" yaml:"detachable,omitempty"`
	// Pattern for the GPU's PCIe location path; or a list.
	LocationPaths []string `json:"locationPath,omitempty" yaml:"locationPath,omitempty" jsonschema:"minItems=1,maxLength=256,format=pattern,example=PCIROOT(0)#*" jsonschema_extras:"shorthand=true"`
}

// MemoryBounds are inclusive bounds of the dedicated memory in bytes; 0 is no bound.
type MemoryBounds struct {
	// Least memory that matches, in bytes or with a unit such as Gi.
	Min Memory `json:"min,omitempty" yaml:"min,omitempty" jsonschema:"type=string,format=memoryBound,example=15Gi"`
	// Most memory that matches.
	Max Memory `json:"max,omitempty" yaml:"max,omitempty" jsonschema:"type=string,format=memoryBound,example=16Gi"`
}

// Memory is a number of bytes.
type Memory uint64

// MarshalYAML implements [yaml.Marshaler].
func (m Memory) MarshalYAML() (any, error) {
	if m%(1<<30) != 0 {
		return uint64(m), nil
	}
	return fmt.Sprintf("%dGi", m>>30), nil
}

// DriverBounds are inclusive bounds of the driver version; the zero value is no bound. A GPU whose
// version is unknown is outside of all bounds.
type DriverBounds struct {
	// Lowest version that matches.
	Min DriverVersion `json:"min,omitzero" yaml:"min,omitempty" jsonschema:"type=string,format=minVersion,example=31.0.15.5222"`
	// Highest version that matches: 31 includes all of 31.x.
	Max DriverVersion `json:"max,omitzero" yaml:"max,omitempty" jsonschema:"type=string,format=maxVersion,example=31"`
}

// DriverVersion is the version of a driver in Windows' four-part form.
type DriverVersion [4]uint16

// ParseDriverVersion parses one to four numbers joined by dots. Numbers that are left out have the
// value missing.
func ParseDriverVersion(text string, missing uint16) (DriverVersion, error) {
	version := DriverVersion{missing, missing, missing, missing}
	parts := strings.Split(text, ".")
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 16)
		if err != nil || len(parts) > len(version) {
			return DriverVersion{}, fmt.Errorf(
				"%q is not a driver version: use 1 to 4 numbers up to 65535 joined by dots, such as 31.0.15.5222", text)
		}
		version[i] = uint16(n)
	}
	return version, nil
}

// String returns the version's numbers joined by dots.
func (v DriverVersion) String() string { return fmt.Sprintf("%d.%d.%d.%d", v[0], v[1], v[2], v[3]) }

// IsZero reports whether there is no version.
func (v DriverVersion) IsZero() bool { return v == DriverVersion{} }

// Less reports whether v is before w.
func (v DriverVersion) Less(w DriverVersion) bool { return slices.Compare(v[:], w[:]) < 0 }

// MarshalText implements [encoding.TextMarshaler].
func (v DriverVersion) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (v *DriverVersion) UnmarshalText(text []byte) (err error) {
	*v, err = ParseDriverVersion(string(text), 0)
	return err
}

// The types of keys that have one of a few values.
type (
	// AllocationPolicy is the order in which GPUs are allocated.
	AllocationPolicy string
	// MixedDrivers is whether a container can have GPUs of different vendors or driver versions.
	// Their files have the same names, so only the first driver works.
	MixedDrivers string
	// Assignment is how Windows containers are assigned devices.
	Assignment string
	// DriverFiles is whether Windows containers get the files that their GPUs' drivers list.
	DriverFiles string
	// Injection is what adds GPUs to containers.
	Injection string
	// MountSources is where the files of extra mounts can come from.
	MountSources string
)

// The values of these keys in config.yaml and policy.json.
const (
	Distributed AllocationPolicy = "distributed" // the GPU with the fewest replicas in use
	Packed      AllocationPolicy = "packed"      // the GPU with the most replicas in use that has one left

	RefuseMixed MixedDrivers = "refuse"
	AllowMixed  MixedDrivers = "allow"

	AssignAuto    Assignment = "auto"          // AssignByPath if Windows supports it
	AssignByPath  Assignment = "location-path" // single devices, by their PCIe location paths
	AssignByClass Assignment = "class-guid"    // all GPUs of the node, by their interface class

	FilesAuto  DriverFiles = "auto"  // FilesMount if Windows does not supply driver files itself
	FilesMount DriverFiles = "mount" // the driver's files and those of [DefaultRuntimeFiles]
	FilesNone  DriverFiles = "none"  // only files that the configuration adds

	// InjectAuto is InjectByNRI on Linux. On Windows, where containerd calls no NRI plugin, it is InjectByShim, or
	// InjectByKubelet with a containerd that runs no shim for the containers of a pod.
	InjectAuto      Injection = "auto"
	InjectByNRI     Injection = "nri"     // the NRI plugin
	InjectByShim    Injection = "shim"    // the runtime shim
	InjectByKubelet Injection = "kubelet" // the kubelet, by the advertiser's answer

	MountSourcesOff             MountSources = "off"
	MountSourcesDriverStore     MountSources = "driver-store"
	MountSourcesHostDirectories MountSources = "host-directories" // the driver store, and HostDirectories
)

// RuntimeFiles changes the runtime files of containers with a vendor's GPUs.
type RuntimeFiles struct {
	// Adds the built-in files: for nvidia, nvidia-smi.exe and the 64-bit and 32-bit vulkaninfo.exe.
	Defaults *bool `json:"defaults,omitempty" yaml:"defaults,omitempty" jsonschema:"default=true"`
	// Files that are left out: patterns of paths below the driver store path.
	Remove []string `json:"remove,omitempty" yaml:"remove,omitempty" jsonschema:"maxItems=64,format=source"`
	// Add are additional files: paths, or mappings with source, directory and destination.
	Add []AddedFile `json:"add,omitempty" yaml:"add,omitempty" jsonschema:"maxItems=64" jsonschema_extras:"shorthand=true"`
}

// AddedFile is a runtime file, or a pattern of several, that the driver does not list. In YAML, it can
// be written as the source alone.
type AddedFile struct {
	// Path or pattern below the driver store path.
	Source string `json:"source" yaml:"source" jsonschema:"required,format=source,example=bin/*.dll"`
	// Directory of the container; SysWOW64 is for 32-bit programs.
	Directory string `json:"directory" yaml:"directory,omitempty" jsonschema:"enum=System32,enum=SysWOW64,default=System32"`
	// File name in that directory. The default is the name of the source.
	Destination string `json:"destination,omitempty" yaml:"destination,omitempty" jsonschema:"format=fileName,example=vulkaninfo.exe"`
}

// The directories of a container that runtime files are mounted into.
const (
	System32 = "System32"
	SysWOW64 = "SysWOW64"
)

// DefaultResources returns the rules of a node that configures none. Their Replicas are 0: the
// compiler sets them.
func DefaultResources() []ResourceRule {
	return []ResourceRule{
		{Name: "directx.microsoft.com/display", Match: Match{Kind: "display"}, AllocationPolicy: Distributed, MixedDrivers: RefuseMixed},
		{Name: "directx.microsoft.com/compute", Match: Match{Kind: "compute"}, AllocationPolicy: Distributed, MixedDrivers: RefuseMixed},
	}
}

// DefaultRuntimeFiles returns the files that drivers do not list and users expect, by vendor.
func DefaultRuntimeFiles() map[pci.Vendor]RuntimeFiles {
	return map[pci.Vendor]RuntimeFiles{pci.VendorNVIDIA: {Add: []AddedFile{
		{Source: "nvidia-smi.exe", Directory: System32},
		{Source: "vulkaninfo-x64.exe", Directory: System32, Destination: "vulkaninfo.exe"},
		{Source: "vulkaninfo-x86.exe", Directory: SysWOW64, Destination: "vulkaninfo.exe"},
	}}}
}

// ExtraMounts is what pods can request by annotation in addition to the driver's files.
type ExtraMounts struct {
	// Sources of the files: none (off), the driver store, or the driver store and hostDirectories
	// (host-directories).
	Sources MountSources `json:"sources" yaml:"sources,omitempty" jsonschema:"enum=off,enum=driver-store,enum=host-directories,default=driver-store"`
	// Configured reports whether the configuration sets Sources.
	Configured bool `json:"configured,omitempty" yaml:"-"`
	// Directories of the node that files can come from, with everything below them.
	HostDirectories []string `json:"hostDirectories,omitempty" yaml:"hostDirectories,omitempty" jsonschema:"maxItems=64"`
	// Directories of a container that files can be mounted into, with everything below them. The
	// default is System32 and SysWOW64.
	Destinations []string `json:"destinations,omitempty" yaml:"destinations,omitempty" jsonschema:"minItems=1,maxItems=64"`
	// Largest number of extra mounts of a container.
	Max int `json:"max" yaml:"max,omitempty" jsonschema:"minimum=1,maximum=1024,default=16"`
}
