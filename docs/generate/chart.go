package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// chartSchema has the parts of values.schema.json that values.yaml does not imply.
//
//go:embed chart.schema.yaml
var chartSchema []byte

type schema = map[string]any

// additions are the parts of chart.schema.yaml that are not in the schema yet, by name.
type additions map[string]schema

// valuesSchema returns values.schema.json, which includes the schema of config.yaml.
func valuesSchema(configSchema []byte) ([]byte, error) {
	values, err := os.ReadFile(chart + "values.yaml")
	if err != nil {
		return nil, err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(values, &document); err != nil {
		return nil, fmt.Errorf("values.yaml: %w", err)
	}
	var more struct {
		Definitions map[string]schema
		Values      additions
	}
	if err := yaml.Unmarshal(chartSchema, &more); err != nil {
		return nil, fmt.Errorf("chart.schema.yaml: %w", err)
	}
	properties, sections, err := more.Values.read("", document.Content[0])
	if err != nil {
		return nil, fmt.Errorf("values.yaml: %w", err)
	}
	for name, s := range more.Values {
		if strings.ContainsAny(name, ".*") {
			return nil, fmt.Errorf("chart.schema.yaml: values.yaml has no %s", name)
		}
		properties[name] = s
	}
	// The keys apiVersion and kind are not required, because the chart adds them.
	var configuration schema
	if err := json.Unmarshal(configSchema, &configuration); err != nil {
		return nil, fmt.Errorf("config.schema.json: %w", err)
	}
	for _, keyword := range []string{"$id", "$schema", "title", "required"} {
		delete(configuration, keyword)
	}
	more.Definitions["configurationMapping"] = configuration
	all := section(properties, sections)
	all["$schema"], all["title"] = "http://json-schema.org/draft-07/schema#", "Values of the directx-nri chart"
	all["definitions"] = more.Definitions
	return encode(all)
}

// section returns the schema of a mapping with fixed keys.
func section(properties schema, required []string) schema {
	return schema{"type": "object", "additionalProperties": false, "required": required, "properties": properties}
}

// read returns the schemas of the values in a mapping by their keys, and the keys of sections.
// Each key needs a comment, except mappings, which are sections without one.
func (a additions) read(prefix string, mapping *yaml.Node) (properties schema, sections []string, err error) {
	properties, sections = schema{}, []string{}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, node := mapping.Content[i], mapping.Content[i+1]
		name := prefix + key.Value
		// A comment before an empty line is not about this key.
		paragraphs := strings.Split(key.HeadComment, "\n\n")
		description := strings.Join(strings.Fields(strings.ReplaceAll(paragraphs[len(paragraphs)-1], "# ", "")), " ")
		switch {
		case description != "":
			properties[key.Value] = a.schemaOf(name, description, node)
		case node.Kind == yaml.MappingNode && len(node.Content) > 0:
			var below schema
			var required []string
			below, required, err = a.read(name+".", node)
			properties[key.Value] = section(below, required)
			sections = append(sections, key.Value)
		default:
			err = fmt.Errorf("line %d: %s has no comment", key.Line, name)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return properties, sections, nil
}

// schemaOf returns the schema of a value that is not a section, and removes its parts from the
// additions.
func (a additions) schemaOf(name, description string, node *yaml.Node) schema {
	s := schema{"description": description}
	_, inSection, _ := strings.Cut(name, ".")
	for _, entry := range []string{"*." + inSection, name} {
		for keyword, of := range a[entry] {
			s[keyword] = of
		}
		if entry == name || strings.HasPrefix(name, "linux.") {
			delete(a, entry)
		}
	}
	if _, ok := s["$ref"]; !ok {
		s["type"] = map[string]string{
			"!!str": "string", "!!bool": "boolean", "!!int": "integer", "!!seq": "array", "!!map": "object",
		}[node.Tag]
	}
	return s
}
