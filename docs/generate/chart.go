package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// chartSchema has the parts of values.schema.json that values.yaml does not imply.
//
//go:embed chart.schema.yaml
var chartSchema []byte

type schema = map[string]any

// values are those of the chart.
type values struct {
	// additions are the parts of chart.schema.yaml that no value has had yet, by name.
	additions map[string]schema
	// list has each value with its default and, in the next line, its description. A value that
	// is the same for both operating systems is there once.
	list []string
}

// chartReference returns the list of values in README.md, and values.schema.json.
func chartReference(valuesYAML, configSchema []byte) (list string, valuesSchema []byte, err error) {
	var document yaml.Node
	if err := yaml.Unmarshal(valuesYAML, &document); err != nil {
		return "", nil, fmt.Errorf("values.yaml: %w", err)
	}
	var more struct{ Definitions, Values map[string]schema }
	if err := yaml.Unmarshal(chartSchema, &more); err != nil {
		return "", nil, fmt.Errorf("chart.schema.yaml: %w", err)
	}
	v := values{additions: more.Values}
	properties, sections, err := v.read("", document.Content[0])
	if err != nil {
		return "", nil, fmt.Errorf("values.yaml: %w", err)
	}
	for name, s := range v.additions {
		if strings.ContainsAny(name, ".*") {
			return "", nil, fmt.Errorf("chart.schema.yaml: values.yaml has no %s", name)
		}
		properties[name] = s
	}
	// The keys apiVersion and kind are not required, because the chart adds them.
	var configuration schema
	if err := json.Unmarshal(configSchema, &configuration); err != nil {
		return "", nil, fmt.Errorf("config.schema.json: %w", err)
	}
	for _, keyword := range []string{"$id", "$schema", "title", "required"} {
		delete(configuration, keyword)
	}
	more.Definitions["configurationMapping"] = configuration
	all := section(properties, sections)
	all["$schema"], all["title"], all["definitions"] = "http://json-schema.org/draft-07/schema#", "Values of the directx-nri chart", more.Definitions
	valuesSchema, err = encode(all)
	return "```text\n" + strings.Join(v.list, "\n") + "\n```\n", valuesSchema, err
}

// section returns the schema of a mapping with fixed keys.
func section(properties schema, required []string) schema {
	return schema{"type": "object", "additionalProperties": false, "required": required, "properties": properties}
}

// read returns the schemas of the values in a mapping by their keys, and the keys of sections.
// Each key needs a comment, except mappings, which are sections without one.
func (v *values) read(prefix string, mapping *yaml.Node) (properties schema, sections []string, err error) {
	properties, sections = schema{}, []string{}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, node := mapping.Content[i], mapping.Content[i+1]
		name := prefix + key.Value
		// A comment before an empty line is not about this key.
		paragraphs := strings.Split(key.HeadComment, "\n\n")
		description := strings.Join(strings.Fields(strings.ReplaceAll(paragraphs[len(paragraphs)-1], "# ", "")), " ")
		switch {
		case description != "":
			properties[key.Value] = v.schemaOf(name, description, node)
			err = v.add(name, description, node)
		case node.Kind == yaml.MappingNode && len(node.Content) > 0:
			var below schema
			var required []string
			below, required, err = v.read(name+".", node)
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

// add adds a value to the list.
func (v *values) add(name, description string, node *yaml.Node) error {
	if node.Kind != yaml.ScalarNode {
		node.Style = yaml.FlowStyle
	}
	text, err := yaml.Marshal(node)
	entry := name
	if own := strings.Join(strings.Fields(string(text)), " "); !slices.Contains([]string{"''", "{}", "[]", "null"}, own) {
		entry += ": " + own
	}
	entry += "\n    " + description
	common, linux := strings.CutPrefix(entry, "linux.")
	if i := slices.Index(v.list, "windows."+common); linux && i >= 0 {
		v.list[i] = "OS." + common
	} else {
		v.list = append(v.list, entry)
	}
	return err
}

// schemaOf returns the schema of a value that is no section. It removes what it uses of the
// additions.
func (v *values) schemaOf(name, description string, node *yaml.Node) schema {
	s := schema{"description": description}
	_, key, _ := strings.Cut(name, ".")
	for _, key := range []string{"*." + key, name} {
		for keyword, of := range v.additions[key] {
			s[keyword] = of
		}
		if key == name || strings.HasPrefix(name, "linux.") {
			delete(v.additions, key)
		}
	}
	if _, ok := s["$ref"]; !ok {
		s["type"] = map[string]string{"!!str": "string", "!!bool": "boolean", "!!int": "integer", "!!seq": "array", "!!map": "object"}[node.Tag]
	}
	return s
}
