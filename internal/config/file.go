package config

import (
	"go.yaml.in/yaml/v3"
)

// File is the content of config.yaml. The comments of its fields are the
// descriptions in the JSON schema and in docs/configuration.md.
type File struct {
	// Version of the file's format.
	APIVersion string `yaml:"apiVersion" jsonschema:"required"`
	// Kind of the file.
	Kind string `yaml:"kind" jsonschema:"required"`
	// Inventory file that describes this node's GPUs: an absolute path. Without one, the GPUs are discovered, on Windows only.
	Inventory string `yaml:"inventory,omitempty" jsonschema:"example=/etc/directx-nri/gpus.yaml"`
	// Preset defines resources and assignmentMode as another device plugin does. It excludes resources.
	Preset string `yaml:"preset,omitempty" jsonschema:"enum=,enum=tensorworks,enum=microsoft,enum=alibaba"`
	// Replicas is the number of containers that can share a GPU, for rules that set no other.
	Replicas integer `yaml:"replicas,omitempty" jsonschema:"default=1,minimum=1,maximum=1024"`
	// Resources are the rules that assign GPUs to extended resources, in order: a GPU belongs to the first rule that matches it, and is not offered if none does.
	Resources []rule `yaml:"resources,omitempty" jsonschema:"minItems=1,maxItems=256"`
	// AssignmentMode is how Windows containers are assigned devices: location-path for single ones, class-guid for all of the node, auto for what the node supports.
	AssignmentMode string `yaml:"assignmentMode,omitempty" jsonschema:"enum=auto,enum=location-path,enum=class-guid,default=auto"`
	// Injection is how GPUs get into containers: by the runtime (the NRI plugin or the runtime shim), or by the kubelet where containerd cannot be reconfigured.
	Injection string `yaml:"injection,omitempty" jsonschema:"enum=runtime,enum=kubelet,default=runtime"`
	// ServedBy is the component that adds GPUs to containers if injection is runtime: nri (the default on Linux) or shim (the default on Windows).
	ServedBy string `yaml:"servedBy,omitempty" jsonschema:"enum=nri,enum=shim"`
	// VisibilityHints adds environment variables to containers that name their GPUs.
	VisibilityHints bool `yaml:"visibilityHints,omitempty" jsonschema:"default=true"`
	// ExtraMounts is what pods can request by annotation in addition to the driver's files.
	ExtraMounts extraMounts `yaml:"extraMounts,omitempty"`
	// RuntimeFiles change the driver files of containers, by vendor: amd, intel, microsoft, nvidia, qualcomm, or a PCI vendor ID such as 0x10DE.
	RuntimeFiles map[string]vendorFiles `yaml:"runtimeFiles,omitempty"`
	// FailOnInitError makes the advertiser exit with an error if there is no GPU when it starts, instead of waiting for one.
	FailOnInitError bool `yaml:"failOnInitError,omitempty" jsonschema:"default=false"`
	// Shim configures the runtime shim.
	Shim shim `yaml:"shim,omitempty"`
	// Log configures the log of directx-advertiser.
	Log logging `yaml:"log,omitempty"`
	// Metrics configures the metrics and health endpoints of directx-advertiser.
	Metrics metrics `yaml:"metrics,omitempty"`
}

type rule struct {
	// Name of the extended resource that pods request. Several rules can have the same name.
	Name string `yaml:"name" jsonschema:"required,maxLength=308,example=example.com/t4"`
	// Match selects the rule's GPUs: those that match all of its keys. Without keys it matches every GPU.
	Match match `yaml:"match,omitempty"`
	// Replicas is the number of containers that can share each of the rule's GPUs. The default is the top-level replicas.
	Replicas *integer `yaml:"replicas,omitempty" jsonschema:"minimum=1,maximum=1024"`
	// AllocationPolicy is the order in which GPUs are allocated: distributed prefers the GPU with the fewest replicas in use, packed the one with the most that has enough left.
	AllocationPolicy string `yaml:"allocationPolicy,omitempty" jsonschema:"enum=distributed,enum=packed,default=distributed"`
	// MaxPerContainer limits the replicas that a container can request.
	MaxPerContainer *integer `yaml:"maxPerContainer,omitempty" jsonschema:"minimum=1,maximum=1048576"`
	// MixedDrivers allows or refuses requests that only GPUs of different vendors or driver versions can meet. Their files have the same names.
	MixedDrivers string `yaml:"mixedDrivers,omitempty" jsonschema:"enum=refuse,enum=allow,default=refuse"`
}

type match struct {
	// Kind is display for GPUs with the full WDDM driver model, or compute for compute-only devices (MCDM).
	Kind string `yaml:"kind,omitempty" jsonschema:"enum=display,enum=compute"`
	// Vendor is amd, intel, microsoft, nvidia, qualcomm, or a PCI vendor ID such as 0x10DE; or a list, of which one must match.
	Vendor texts `yaml:"vendor,omitempty"`
	// Description is a pattern for the GPU's name, with * and ?, without regard to case; or a list, of which one must match.
	Description texts `yaml:"description,omitempty" jsonschema:"example=NVIDIA Tesla T4*"`
	// DedicatedMemory bounds the GPU's own memory, in bytes or with a unit such as Gi.
	DedicatedMemory memoryBounds `yaml:"dedicatedMemory,omitempty"`
	// DriverVersion bounds the version of the driver. A GPU whose version is unknown does not match.
	DriverVersion versionBounds `yaml:"driverVersion,omitempty"`
	// Integrated matches GPUs that share the processor's memory, or those that do not.
	Integrated *bool `yaml:"integrated,omitempty"`
	// Detachable matches GPUs that can be unplugged while the node runs, or those that cannot.
	Detachable *bool `yaml:"detachable,omitempty"`
	// LocationPath is a pattern for the GPU's PCIe location path, with * and ?; or a list, of which one must match.
	LocationPath texts `yaml:"locationPath,omitempty" jsonschema:"example=PCIROOT(0)#*"`
}

type memoryBounds struct {
	// Min is the least memory that matches.
	Min string `yaml:"min,omitempty" jsonschema:"oneof_type=string;integer,example=15Gi"`
	// Max is the most memory that matches.
	Max string `yaml:"max,omitempty" jsonschema:"oneof_type=string;integer,example=16Gi"`
}

type versionBounds struct {
	// Min is the lowest version that matches. Numbers that are left out are 0.
	Min string `yaml:"min,omitempty" jsonschema:"oneof_type=string;number,example=31.0.15.5222"`
	// Max is the highest version that matches. Numbers that are left out are 65535, so 31 includes all of 31.x.
	Max string `yaml:"max,omitempty" jsonschema:"oneof_type=string;number,example=31"`
}

type extraMounts struct {
	// Sources is where the files can come from: off for nowhere, driver-store, or host-directories for the driver store and hostDirectories.
	Sources string `yaml:"sources,omitempty" jsonschema:"enum=off,enum=driver-store,enum=host-directories,default=driver-store"`
	// HostDirectories are the node's directories that files can come from, with everything below them. Directories that contain, or are part of, the node's secrets are refused.
	HostDirectories []string `yaml:"hostDirectories,omitempty" jsonschema:"maxItems=64"`
	// Destinations are a container's directories that files can be mounted into, with everything below them. The default is System32 and SysWOW64.
	Destinations []string `yaml:"destinations,omitempty" jsonschema:"minItems=1,maxItems=64"`
	// Max is the largest number of extra mounts of a container.
	Max integer `yaml:"max,omitempty" jsonschema:"minimum=1,maximum=1024,default=16"`
}

type vendorFiles struct {
	// Defaults adds the built-in files: for nvidia nvidia-smi.exe, vulkaninfo-x64.exe as vulkaninfo.exe, and vulkaninfo-x86.exe as vulkaninfo.exe for 32-bit programs.
	Defaults *bool `yaml:"defaults,omitempty" jsonschema:"default=true"`
	// Remove are patterns, with * and ?, of files that are left out, as paths below the driver store path.
	Remove []string `yaml:"remove,omitempty" jsonschema:"maxItems=64"`
	// Add are additional files: paths, or mappings with source, directory and destination.
	Add []addedFile `yaml:"add,omitempty" jsonschema:"maxItems=64"`
}

type addedFile struct {
	// Source is the file's path below the driver store path, with * and ?.
	Source string `yaml:"source" jsonschema:"required,example=bin/*.dll"`
	// Directory of the container: System32, or SysWOW64 for 32-bit programs.
	Directory string `yaml:"directory,omitempty" jsonschema:"enum=System32,enum=SysWOW64,default=System32"`
	// Destination is the file's name there. The default is the name of the source.
	Destination string `yaml:"destination,omitempty" jsonschema:"example=vulkaninfo.exe"`
}

// UnmarshalYAML implements [yaml.Unmarshaler].
func (a *addedFile) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		*a = addedFile{Source: node.Value}
		return nil
	}
	type plain addedFile
	return decodeKnown(node, (*plain)(a), "source", "directory", "destination")
}

type shim struct {
	// Runtime is the real shim: an absolute path, or a file name that is looked up beside our shim and on PATH. The default is the system's usual one.
	Runtime string `yaml:"runtime,omitempty" jsonschema:"example=containerd-shim-runc-v2"`
	// Log is the shim's log file. The default is shim.log in the state directory.
	Log string `yaml:"log,omitempty" jsonschema:"example=/var/log/directx-shim.log"`
}

type logging struct {
	// Level is the least severe level that is logged.
	Level string `yaml:"level,omitempty" jsonschema:"enum=error,enum=warn,enum=info,enum=debug,default=info"`
	// Format of the log on standard error.
	Format string `yaml:"format,omitempty" jsonschema:"enum=text,enum=json,default=text"`
}

type metrics struct {
	// Address is the host:port of the endpoints. Without one they are disabled.
	Address string `yaml:"address,omitempty" jsonschema:"example=127.0.0.1:9400"`
}

// defaultFile returns the content that stands for keys that are not set.
func defaultFile() File {
	return File{
		Replicas: 1, VisibilityHints: true, Injection: "runtime",
		ExtraMounts: extraMounts{Sources: "driver-store", Max: 16},
		Log:         logging{Level: "info", Format: "text"},
	}
}

// mayBeEmpty are the keys of which "" is a value.
func mayBeEmpty() []string {
	return []string{"inventory", "preset", "shim.runtime", "metrics.address"}
}
