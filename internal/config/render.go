package config

import (
	"bytes"
	"errors"
	"reflect"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/directx-nri/directx-nri/internal/policy"
)

// Render returns the text of a config.yaml that compiles to p. Values that are defaults have a comment.
func Render(p policy.Policy) ([]byte, error) {
	defaults := configurationOf(policy.Default())
	defaults.APIVersion, defaults.Kind = "", "" // These values are not marked.
	var root, defaultRoot yaml.Node
	if err := errors.Join(root.Encode(configurationOf(p)), defaultRoot.Encode(defaults)); err != nil {
		return nil, err
	}
	markDefaults(&root, &defaultRoot)
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	err := encoder.Encode(&root)
	return text.Bytes(), err
}

// markDefaults adds a comment to the values of a mapping that equal those of defaults.
func markDefaults(mapping, defaults *yaml.Node) {
	defaultValues := entries(defaults)
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		defaultValue := defaultValues[key.Value]
		switch {
		case defaultValue == nil:
		case value.Kind == yaml.MappingNode:
			markDefaults(value, defaultValue)
		case !reflect.DeepEqual(value, defaultValue):
		case value.Kind == yaml.ScalarNode:
			value.LineComment = "default"
		default:
			key.LineComment = "default"
		}
	}
}

// configurationOf returns the content of a config.yaml that compiles to p.
func configurationOf(p policy.Policy) Configuration {
	f := Configuration{APIVersion: APIVersion, Kind: Kind, Inventory: p.Source.Inventory, Policy: p, RuntimeFiles: vendorsOf(p.RuntimeFiles)}
	if !p.ExtraMounts.Configured {
		f.ExtraMounts.Sources = ""
	}
	return f
}

// vendorsOf returns the value of runtimeFiles in a config.yaml that compiles to list.
func vendorsOf(list []policy.RuntimeFileRule) map[string]vendorFiles {
	byVendor, no := map[string]vendorFiles{}, false
	for _, builtIn := range policy.DefaultRuntimeFiles() {
		if !slices.ContainsFunc(list, func(r policy.RuntimeFileRule) bool { return r.BuiltIn && r.Vendor == builtIn.Vendor }) {
			byVendor[policy.VendorName(builtIn.Vendor)] = vendorFiles{Defaults: &no}
		}
	}
	for _, r := range list {
		if name := policy.VendorName(r.Vendor); !r.BuiltIn {
			byVendor[name] = vendorFiles{byVendor[name].Defaults, r}
		}
	}
	return byVendor
}
