package config

import (
	"errors"

	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// File is the content of config.yaml. The comments of its fields, and of those of package
// policy with YAML names, are the descriptions in the JSON schema and in
// docs/configuration.md. Their jsonschema tags are the limits of the values.
type File struct {
	// Version of the file's format.
	APIVersion string `yaml:"apiVersion" jsonschema:"required,enum=directx.microsoft.com/v1alpha1"`
	// Kind of the file.
	Kind string `yaml:"kind" jsonschema:"required,enum=Configuration"`
	// Absolute path of the inventory file. Without one, GPUs are discovered: on Windows, and on Linux with /dev/dxg.
	Inventory string `yaml:"inventory,omitempty" jsonschema:"minLength=0,example=/etc/directx-nri/gpus.yaml"`
	// Resources and assignmentMode of another device plugin. It excludes resources.
	Preset string `yaml:"preset,omitempty" jsonschema:"enum=,enum=tensorworks,enum=microsoft,enum=alibaba"`
	// Number of containers that can share a GPU, if its rule sets no other.
	Replicas int `yaml:"replicas,omitempty" jsonschema:"default=1,minimum=1,maximum=1024"`
	// Resources are the rules that assign GPUs to extended resources, in order: a GPU belongs to the first rule that matches it, and is not offered if none does.
	Resources []rule `yaml:"resources,omitempty" jsonschema:"minItems=1,maxItems=256"`
	// How Windows containers are assigned devices: single ones (location-path), all of the node (class-guid), or what the node supports.
	AssignmentMode policy.Assignment `yaml:"assignmentMode,omitempty" jsonschema:"enum=auto,enum=location-path,enum=class-guid,default=auto"`
	// Whether Windows containers get driver files (mount), or only those that runtimeFiles adds (none). auto is none from Windows Server 2025 (build 26100) on.
	DriverFiles policy.DriverFiles `yaml:"driverFiles" jsonschema:"enum=auto,enum=mount,enum=none,default=auto"`
	// What adds GPUs to containers: the runtime (by the NRI plugin or the runtime shim), or the kubelet.
	Injection policy.Injection `yaml:"injection" jsonschema:"enum=runtime,enum=kubelet,default=runtime"`
	// Whether the NRI plugin (nri) or the runtime shim (shim) adds GPUs, with injection runtime. The default is nri on Linux, shim on Windows.
	ServedBy policy.ServedBy `yaml:"servedBy,omitempty" jsonschema:"enum=nri,enum=shim"`
	// Adds environment variables to containers that name their GPUs.
	VisibilityHints bool `yaml:"visibilityHints" jsonschema:"default=true"`
	// ExtraMounts is what pods can request by annotation in addition to the driver's files.
	ExtraMounts policy.ExtraMounts `yaml:"extraMounts"`
	// Standalone configures containers outside Kubernetes.
	Standalone standalone `yaml:"standalone"`
	// RuntimeFiles change the driver files of containers, by vendor: amd, intel, microsoft, nvidia, qualcomm, or a PCI vendor ID such as 0x10DE.
	RuntimeFiles map[vendor]vendorFiles `yaml:"runtimeFiles,omitempty"`
	// Makes the advertiser exit with an error if there is no GPU when it starts.
	FailOnInitError bool `yaml:"failOnInitError" jsonschema:"default=false"`
	// Shim configures the runtime shim.
	Shim policy.Shim `yaml:"shim,omitempty"`
	// Log configures the log of directx-advertiser.
	Log policy.Log `yaml:"log"`
	// Metrics configures the metrics and health endpoints of directx-advertiser.
	Metrics metrics `yaml:"metrics,omitempty"`
}

type rule struct {
	// Extended resource that pods request.
	Name resourceName `yaml:"name" jsonschema:"required,maxLength=308,example=example.com/t4"`
	// Match selects the rule's GPUs: those that match all of its keys.
	Match match `yaml:"match,omitempty"`
	// Number of containers that can share a GPU. Default: the top-level replicas.
	Replicas int `yaml:"replicas,omitempty" jsonschema:"minimum=1,maximum=1024"`
	// Which GPU is allocated first: the least used (distributed), or the most used that has enough replicas left (packed).
	AllocationPolicy policy.AllocationPolicy `yaml:"allocationPolicy,omitempty" jsonschema:"enum=distributed,enum=packed,default=distributed"`
	// Limits the replicas that a container can request.
	MaxPerContainer int `yaml:"maxPerContainer,omitempty" jsonschema:"minimum=1,maximum=1048576"`
	// Whether a container can have GPUs of different drivers, whose files have the same names.
	MixedDrivers string `yaml:"mixedDrivers,omitempty" jsonschema:"enum=refuse,enum=allow,default=refuse"`
}

type match struct {
	// GPUs with Direct3D 11 or 12 graphics (display), or compute-only devices (MCDM).
	Kind string `yaml:"kind,omitempty" jsonschema:"enum=display,enum=compute"`
	// amd, intel, microsoft, nvidia, qualcomm, a PCI vendor ID such as 0x10DE, or a list.
	Vendor oneOrMore[vendor] `yaml:"vendor,omitempty" jsonschema:"minItems=1"`
	// Pattern for the GPU's name, with * and ?, not case-sensitive; or a list.
	Description oneOrMore[pattern] `yaml:"description,omitempty" jsonschema:"minItems=1,example=NVIDIA Tesla T4*"`
	// DedicatedMemory bounds the GPU's own memory.
	DedicatedMemory memoryBounds `yaml:"dedicatedMemory,omitempty"`
	// DriverVersion bounds the version of the driver. An unknown one does not match.
	DriverVersion versionBounds `yaml:"driverVersion,omitempty"`
	// Whether the GPU shares the processor's memory.
	Integrated *bool `yaml:"integrated,omitempty"`
	// Whether the GPU can be unplugged while the node runs.
	Detachable *bool `yaml:"detachable,omitempty"`
	// Pattern for the GPU's PCIe location path; or a list.
	LocationPath oneOrMore[pattern] `yaml:"locationPath,omitempty" jsonschema:"minItems=1,example=PCIROOT(0)#*"`
}

type memoryBounds struct {
	// Least memory that matches, in bytes or with a unit such as Gi.
	Min memory `yaml:"min,omitempty" jsonschema:"example=15Gi"`
	// Most memory that matches.
	Max memory `yaml:"max,omitempty" jsonschema:"example=16Gi"`
}

func (b memoryBounds) check() error {
	switch least, most := b.Min.bytes(), b.Max.bytes(); {
	case b.Min != "" && least == 0 || b.Max != "" && most == 0:
		return errNoBound
	case b.Max != "" && most < least:
		return errMaxLessThanMin
	}
	return nil
}

type versionBounds struct {
	// Lowest version that matches.
	Min driverVersion `yaml:"min,omitempty" jsonschema:"example=31.0.15.5222"`
	// Highest version that matches: 31 includes all of 31.x.
	Max driverVersion `yaml:"max,omitempty" jsonschema:"example=31"`
}

const highest = 65535 // number in a version

func (b versionBounds) check() error {
	switch lowest := b.Min.fill(0); {
	case b.Min != "" && lowest == (policy.DriverVersion{}):
		return errNoBound
	case b.Max != "" && b.Max.fill(highest).Less(lowest):
		return errMaxLessThanMin
	}
	return nil
}

var (
	errNoBound        = errors.New("0 is not a bound: remove the key")
	errMaxLessThanMin = errors.New("max is less than min")
)

type standalone struct {
	// Lets environment variables of Linux containers request GPUs, as those of Windows containers do. Images can set them, too.
	Environment bool `yaml:"environment" jsonschema:"default=false"`
}

type vendorFiles struct {
	// Adds the built-in files: for nvidia, nvidia-smi.exe and the 64-bit and 32-bit vulkaninfo.exe.
	Defaults *bool `yaml:"defaults,omitempty" jsonschema:"default=true"`
	// Files that are left out: patterns of paths below the driver store path.
	Remove []sourcePattern `yaml:"remove,omitempty" jsonschema:"maxItems=64"`
	// Add are additional files: paths, or mappings with source, directory and destination.
	Add []addedFile `yaml:"add,omitempty" jsonschema:"maxItems=64"`
}

// addedFile is a [policy.AddedFile], or its source alone.
type addedFile struct {
	// Path or pattern below the driver store path.
	Source sourcePattern `yaml:"source" jsonschema:"required,example=bin/*.dll"`
	// Directory of the container; SysWOW64 is for 32-bit programs.
	Directory string `yaml:"directory,omitempty" jsonschema:"enum=System32,enum=SysWOW64,default=System32"`
	// File name in that directory. The default is the name of the source.
	Destination fileName `yaml:"destination,omitempty" jsonschema:"example=vulkaninfo.exe"`
}

func (addedFile) shorthand() {}

func (a addedFile) check() error {
	if a.Destination != "" && winpath.HasWildcard(string(a.Source)) {
		return errors.New("one destination for what can be several files: remove it, or name the source without * and ?")
	}
	return nil
}

type metrics struct {
	// host:port of the metrics and health endpoints.
	Address string `yaml:"address,omitempty" jsonschema:"minLength=0,pattern=^((\\[[0-9a-fA-F:]+\\]|[A-Za-z0-9.-]*):[1-9][0-9]{0\\,4})?$,example=127.0.0.1:9400"`
}

// defaultFile returns the content that stands for keys that are not set.
func defaultFile() File {
	p := policy.Default()
	mounts := p.ExtraMounts
	mounts.Sources = "" // It matters whether the file sets it.
	return File{Replicas: 1, VisibilityHints: p.VisibilityHints, DriverFiles: p.DriverFiles, Injection: p.Injection, ExtraMounts: mounts, Log: p.Log}
}
