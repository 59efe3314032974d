package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/directx-nri/directx-nri/internal/pci"
)

// The types below have the keys of config.yaml, which advertiser/config/config.schema.json describes.

// ResourceRule is a rule that defines which GPUs an extended resource has, and how they are shared.
// Several rules can have the same name. Then only their fields Match and Replicas differ.
type ResourceRule struct {
	Name             string           `json:"name"`
	Match            Match            `json:"match,omitzero"`
	Replicas         int              `json:"replicas"`
	AllocationPolicy AllocationPolicy `json:"allocationPolicy"`
	MaxPerContainer  int              `json:"maxPerContainer,omitempty"` // 0 is no limit
	MixedDrivers     MixedDrivers     `json:"mixedDrivers"`
}

// Match selects GPUs: those that match all of its fields. The zero value of a field matches every
// GPU.
type Match struct {
	Kind            string       `json:"kind,omitempty"`
	Vendors         []pci.Vendor `json:"vendor,omitempty"`
	Descriptions    []string     `json:"description,omitempty"`
	DedicatedMemory MemoryBounds `json:"dedicatedMemory,omitzero"`
	DriverVersion   DriverBounds `json:"driverVersion,omitzero"`
	Integrated      *bool        `json:"integrated,omitempty"`
	Detachable      *bool        `json:"detachable,omitempty"`
	// MachineLearningOnly is for devices with neither graphics nor core compute.
	MachineLearningOnly *bool    `json:"machineLearningOnly,omitempty"`
	LocationPaths       []string `json:"locationPath,omitempty"`
}

// MemoryBounds are inclusive bounds of the dedicated memory in bytes; 0 is no bound.
type MemoryBounds struct {
	Min uint64 `json:"min,omitempty"`
	Max uint64 `json:"max,omitempty"`
}

// DriverBounds are inclusive bounds of the driver version; the zero value is no bound. A GPU whose
// version is unknown is outside of all bounds.
type DriverBounds struct {
	Min DriverVersion `json:"min,omitempty"`
	Max DriverVersion `json:"max,omitempty"`
}

// DriverVersion has the numbers of a driver's version. A bound can have fewer than the four of a
// version: it is compared with the first ones, so that the upper bound 31 includes all of 31.x.
type DriverVersion []uint16

// Compare compares the numbers that both versions have.
func (v DriverVersion) Compare(w DriverVersion) int {
	n := min(len(v), len(w))
	return slices.Compare(v[:n], w[:n])
}

// MarshalText implements [encoding.TextMarshaler].
func (v DriverVersion) MarshalText() ([]byte, error) {
	return []byte(strings.Trim(strings.ReplaceAll(fmt.Sprint([]uint16(v)), " ", "."), "[]")), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (v *DriverVersion) UnmarshalText(text []byte) error {
	*v = nil
	for part := range strings.SplitSeq(string(text), ".") {
		n, err := strconv.ParseUint(part, 10, 16)
		if err != nil {
			return fmt.Errorf("driver version %q: %w", text, err)
		}
		*v = append(*v, uint16(n))
	}
	return nil
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

	MountSourcesNone            MountSources = "none"
	MountSourcesDriverStore     MountSources = "driver-store"
	MountSourcesHostDirectories MountSources = "host-directories" // the driver store, and HostDirectories
)

// RuntimeFiles changes the runtime files of containers with a vendor's GPUs.
type RuntimeFiles struct {
	// Defaults is whether to add those of [DefaultRuntimeFiles]; nil is true.
	Defaults *bool       `json:"defaults,omitempty"`
	Remove   []string    `json:"remove,omitempty"`
	Add      []AddedFile `json:"add,omitempty"`
}

// AddedFile is a runtime file, or a pattern of several, that the driver does not list.
type AddedFile struct {
	Source      string `json:"source"`
	Directory   string `json:"directory,omitempty"`   // System32 or SysWOW64; "" is System32
	Destination string `json:"destination,omitempty"` // "" is the name of the source
}

// The directories of a container that runtime files are mounted into.
const (
	System32 = "System32"
	SysWOW64 = "SysWOW64"
)

// DefaultRuntimeFiles returns the files that drivers do not list and users expect, by vendor.
func DefaultRuntimeFiles() map[pci.Vendor]RuntimeFiles {
	return map[pci.Vendor]RuntimeFiles{pci.VendorNVIDIA: {Add: []AddedFile{
		{Source: "nvidia-smi.exe"},
		{Source: "vulkaninfo-x64.exe", Destination: "vulkaninfo.exe"},
		{Source: "vulkaninfo-x86.exe", Directory: SysWOW64, Destination: "vulkaninfo.exe"},
	}}}
}

// ExtraMounts is what pods can request by annotation in addition to the driver's files.
type ExtraMounts struct {
	Sources         MountSources `json:"sources,omitempty"`
	HostDirectories []string     `json:"hostDirectories,omitempty"`
	Destinations    []string     `json:"destinations,omitempty"` // none is System32 and SysWOW64
	Max             int          `json:"max"`
}
