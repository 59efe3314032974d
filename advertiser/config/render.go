package config

import (
	"bytes"
	"errors"
	"reflect"

	"go.yaml.in/yaml/v3"

	"github.com/directx-nri/directx-nri/internal/policy"
)

// Render returns the text of a config.yaml that compiles to p. Values that are defaults have a
// comment.
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
	f := Configuration{APIVersion: APIVersion, Kind: Kind, Inventory: p.CompiledFrom.Inventory, Policy: p}
	if !p.ExtraMounts.Configured {
		f.ExtraMounts.Sources = ""
	}
	return f
}
