package config

import "github.com/directx-nri/directx-nri/internal/policy"

// Configuration is the content of config.yaml: the node policy as it is written in YAML. The
// comments of the fields are their descriptions in the JSON schema and in docs/configuration.md.
// The jsonschema tags are the limits of the values, and parseFormat has the formats.
type Configuration struct {
	// Version of the file's format.
	APIVersion string `yaml:"apiVersion" jsonschema:"required,enum=directx.microsoft.com/v1alpha1"`
	// Kind of the file.
	Kind string `yaml:"kind" jsonschema:"required,enum=Configuration"`
	// Absolute path of the inventory file. Without one, GPUs are discovered: on Windows, and on
	// Linux with /dev/dxg.
	Inventory string `yaml:"inventory,omitempty" jsonschema:"minLength=0,example=/etc/directx-nri/gpus.yaml"`
	// Resources and assignmentMode of another device plugin. It excludes resources.
	Preset string `yaml:"preset,omitempty" jsonschema:"enum=,enum=tensorworks,enum=microsoft,enum=alibaba"`
	// Number of containers that can share a GPU, if its rule sets no other.
	Replicas int `yaml:"replicas,omitempty" jsonschema:"default=1,minimum=1,maximum=1024"`

	policy.Policy `yaml:",inline"`
}

// defaultConfiguration returns the defaults of the keys. It has none of the defaults that depend on
// other keys, and no sources of extra mounts, because it matters whether they are set.
func defaultConfiguration() Configuration {
	f := Configuration{Replicas: 1, Policy: policy.Default()}
	f.Resources, f.Assignment, f.ExtraMounts.Sources = nil, "", ""
	return f
}
