package config

import (
	"bytes"
	"errors"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/directx-nri/directx-nri/internal/policy"
)

// Render returns the text of a config.yaml that compiles to p, in which the values that equal
// those of defaults are marked.
func Render(p, defaults policy.Policy) ([]byte, error) {
	usual := fileOf(defaults)
	usual.APIVersion, usual.Kind = "", ""
	var root, usualRoot yaml.Node
	if err := errors.Join(root.Encode(fileOf(p)), usualRoot.Encode(usual)); err != nil {
		return nil, err
	}
	markEqual(&root, &usualRoot)
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	err := encoder.Encode(&root)
	return text.Bytes(), err
}

// markEqual marks the values of a mapping that equal those of usual.
func markEqual(mapping, usual *yaml.Node) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		other := child(usual, key.Value)
		switch {
		case other == nil:
		case value.Kind == yaml.MappingNode:
			markEqual(value, other)
		case equal(value, other) && value.Kind == yaml.ScalarNode:
			value.LineComment = "default"
		case equal(value, other):
			key.LineComment = "default"
		}
	}
}

func equal(a, b *yaml.Node) bool {
	return a.Kind == b.Kind && a.Value == b.Value && slices.EqualFunc(a.Content, b.Content, equal)
}

// fileOf returns the content of a config.yaml that compiles to p.
func fileOf(p policy.Policy) File {
	f := File{
		APIVersion: APIVersion, Kind: Kind, Inventory: p.Source.Inventory,
		AssignmentMode: p.Assignment, DriverFiles: p.DriverFiles, Injection: p.Injection, ServedBy: p.ServedBy,
		VisibilityHints: p.VisibilityHints, ExtraMounts: p.ExtraMounts, Standalone: standalone{p.StandaloneEnvironment},
		FailOnInitError: p.FailOnInitError, Shim: p.Shim, Log: p.Log, Metrics: metrics{p.MetricsAddress},
		RuntimeFiles: vendorsOf(p.RuntimeFiles),
	}
	if !p.ExtraMounts.Configured {
		f.ExtraMounts.Sources = ""
	}
	for _, r := range p.Resources {
		f.Resources = append(f.Resources, ruleOf(r))
	}
	return f
}

func ruleOf(r policy.Resource) rule {
	m := match{
		Kind: r.Match.Kind, Integrated: r.Match.Integrated, Detachable: r.Match.Detachable,
		DedicatedMemory: memoryBounds{memoryOf(r.Match.MinMemory), memoryOf(r.Match.MaxMemory)},
		DriverVersion:   versionBounds{driverVersionOf(r.Match.MinDriver), driverVersionOf(r.Match.MaxDriver)},
		Description:     listOf[pattern](r.Match.Descriptions), LocationPath: listOf[pattern](r.Match.LocationPaths),
	}
	for _, id := range r.Match.Vendors {
		m.Vendor = append(m.Vendor, vendor(id))
	}
	mixed := "refuse"
	if r.MixedDrivers {
		mixed = "allow"
	}
	return rule{
		Name: resourceName(r.Name), Match: m, Replicas: r.Replicas, AllocationPolicy: r.AllocationPolicy, MaxPerContainer: r.MaxPerContainer, MixedDrivers: mixed,
	}
}

// vendorsOf returns the changes that make list of the built-in runtime files.
func vendorsOf(list []policy.RuntimeFiles) map[vendor]vendorFiles {
	byVendor, no := map[vendor]vendorFiles{}, false
	for _, builtIn := range policy.DefaultRuntimeFiles() {
		if !slices.ContainsFunc(list, func(r policy.RuntimeFiles) bool { return r.BuiltIn && r.Vendor == builtIn.Vendor }) {
			byVendor[vendor(builtIn.Vendor)] = vendorFiles{Defaults: &no}
		}
	}
	for _, r := range list {
		if r.BuiltIn {
			continue
		}
		files := byVendor[vendor(r.Vendor)]
		files.Remove = listOf[sourcePattern](r.Remove)
		for _, a := range r.Add {
			files.Add = append(files.Add, addedFile{sourcePattern(a.Source), a.Directory, fileName(a.Destination)})
		}
		byVendor[vendor(r.Vendor)] = files
	}
	return byVendor
}
