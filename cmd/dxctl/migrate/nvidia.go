package migrate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// nvidiaConfig is the configuration file of NVIDIA's device plugin: api/config/v1 in
// https://github.com/NVIDIA/k8s-device-plugin (v0.20.0).
type nvidiaConfig struct {
	Version string
	Flags   struct {
		FailOnInitError *bool `yaml:"failOnInitError"`
		Plugin          struct {
			AllocationPolicy policy.AllocationPolicy `yaml:"sharedDevicesAllocationPolicy"`
			Other            map[string]any          `yaml:",inline"`
		}
		Other map[string]any `yaml:",inline"`
	}
	Sharing struct {
		TimeSlicing struct {
			RenameByDefault            bool `yaml:"renameByDefault"`
			FailRequestsGreaterThanOne bool `yaml:"failRequestsGreaterThanOne"`
			Resources                  []struct {
				Name     string
				Replicas int
				Other    map[string]any `yaml:",inline"`
			}
			Other map[string]any `yaml:",inline"`
		} `yaml:"timeSlicing"`
		Other map[string]any `yaml:",inline"`
	}
	Other map[string]any `yaml:",inline"`
}

const nvidiaGPU = "nvidia.com/gpu"

// convertNVIDIA converts a configuration file, which can be in a ConfigMap.
func convertNVIDIA(documents []manifest) (f convertedConfig, notes []string, err error) {
	c, err := findNVIDIAConfig(documents)
	if err != nil {
		return f, nil, err
	}
	gpu := policy.ResourceRule{
		Name: nvidiaGPU, Match: policy.Match{Vendors: []pci.Vendor{pci.VendorNVIDIA}},
		Replicas: 1, AllocationPolicy: c.Flags.Plugin.AllocationPolicy,
	}
	slicing := c.Sharing.TimeSlicing
	for i, r := range slicing.Resources {
		path := fmt.Sprintf("sharing.timeSlicing.resources[%d]", i)
		if r.Name != nvidiaGPU && "nvidia.com/"+r.Name != nvidiaGPU {
			notes = append(notes, path+" has no counterpart: it is not "+nvidiaGPU+".")
			continue
		}
		if gpu.Replicas = r.Replicas; r.Replicas < 1 { // 0 would be left out of config.yaml.
			return f, nil, fmt.Errorf("%s.replicas: %d is out of range: use 1 or more", path, r.Replicas)
		}
		if slicing.RenameByDefault {
			gpu.Name = nvidiaGPU + ".shared"
		}
		if slicing.FailRequestsGreaterThanOne {
			gpu.MaxPerContainer = 1
		}
		// NVIDIA's plugin ignores rename, too: DisableResourceNamingInConfig (config.go).
		notes = append(notes, unconvertedNotes(path, r.Other)...)
	}
	others := map[string]map[string]any{
		"": c.Other, "flags": c.Flags.Other, "flags.plugin": c.Flags.Plugin.Other,
		"sharing": c.Sharing.Other, "sharing.timeSlicing": slicing.Other,
	}
	for _, path := range slices.Sorted(maps.Keys(others)) {
		notes = append(notes, unconvertedNotes(path, others[path])...)
	}
	return convertedConfig{FailOnInitError: c.Flags.FailOnInitError, Resources: []policy.ResourceRule{gpu}}, notes, nil
}

// findNVIDIAConfig returns the only configuration in documents.
func findNVIDIAConfig(documents []manifest) (c nvidiaConfig, err error) {
	var found []string
	for _, d := range documents {
		roots := map[string]yaml.Node{"the file": *d.root}
		for name, text := range d.Data {
			var root yaml.Node
			_ = yaml.Unmarshal([]byte(text), &root) // Another text is not a configuration.
			roots[name] = root
		}
		for _, name := range slices.Sorted(maps.Keys(roots)) {
			root := roots[name]
			var keys map[string]yaml.Node
			if root.Decode(&keys) != nil || keys["version"].Value != "v1" {
				continue
			}
			found = append(found, name)
			if err := root.Decode(&c); err != nil {
				return c, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	switch len(found) {
	case 0:
		return c, fmt.Errorf("%w of NVIDIA's device plugin: want a file with version: v1, or a ConfigMap that has one", errNotConfiguration)
	case 1:
		return c, nil
	}
	return c, fmt.Errorf("several configurations: %s: convert one at a time", strings.Join(found, ", "))
}
