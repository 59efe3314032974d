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

// value is one key of values.yaml.
type value struct {
	name        string // with the names of its sections, such as image.tag
	description string // "" for a section
	node        *yaml.Node
	children    []value // of a section
}

// parse returns the keys of values.yaml. Each needs a comment, except mappings, which
// are sections without one.
func parse(text []byte) ([]value, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	return parseMapping("", document.Content[0])
}

func parseMapping(prefix string, mapping *yaml.Node) ([]value, error) {
	var values []value
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, node := mapping.Content[i], mapping.Content[i+1]
		// A comment before an empty line is not about this key.
		paragraphs := strings.Split(key.HeadComment, "\n\n")
		v := value{
			name: prefix + key.Value, node: node,
			description: strings.Join(strings.Fields(strings.ReplaceAll(paragraphs[len(paragraphs)-1], "# ", "")), " "),
		}
		if v.description == "" {
			if node.Kind != yaml.MappingNode || len(node.Content) == 0 {
				return nil, fmt.Errorf("line %d: %s has no comment", key.Line, v.name)
			}
			var err error
			if v.children, err = parseMapping(v.name+".", node); err != nil {
				return nil, err
			}
		}
		values = append(values, v)
	}
	return values, nil
}

// valuesList returns each value with its default and, in the next line, its
// description. A value that is the same for both operating systems is listed once.
func valuesList(values []value) (string, error) {
	var entries []string
	if err := appendEntries(&entries, values); err != nil {
		return "", err
	}
	var list []string
	for _, entry := range entries {
		windows, ok := strings.CutPrefix(entry, "windows.")
		linux, isLinux := strings.CutPrefix(entry, "linux.")
		switch {
		case ok && slices.Contains(entries, "linux."+windows):
			list = append(list, "OS."+windows)
		case !isLinux || !slices.Contains(entries, "windows."+linux):
			list = append(list, entry)
		}
	}
	return "```text\n" + strings.Join(list, "\n") + "\n```\n", nil
}

func appendEntries(entries *[]string, values []value) error {
	for _, v := range values {
		if v.children != nil {
			if err := appendEntries(entries, v.children); err != nil {
				return err
			}
			continue
		}
		var flow func(*yaml.Node)
		flow = func(n *yaml.Node) {
			if n.Kind != yaml.ScalarNode {
				n.Style |= yaml.FlowStyle
			}
			for _, child := range n.Content {
				flow(child)
			}
		}
		flow(v.node)
		text, err := yaml.Marshal(v.node)
		if err != nil {
			return err
		}
		entry := v.name
		if own := strings.Join(strings.Fields(string(text)), " "); !slices.Contains([]string{"''", "{}", "[]", "null"}, own) {
			entry += ": " + own
		}
		*entries = append(*entries, entry+"\n    "+v.description)
	}
	return nil
}

type schema = map[string]any

// buildChartSchema returns values.schema.json.
func buildChartSchema(values []value, additions, configuration []byte) ([]byte, error) {
	var more struct{ Definitions, Values map[string]schema }
	if err := yaml.Unmarshal(additions, &more); err != nil {
		return nil, fmt.Errorf("chart.schema.yaml: %w", err)
	}
	properties, sections := propertiesOf(values, more.Values)
	for name, s := range more.Values {
		if strings.ContainsAny(name, ".*") {
			return nil, fmt.Errorf("chart.schema.yaml: values.yaml has no %s", name)
		}
		properties[name] = s
	}
	var err error
	if more.Definitions["configurationMapping"], err = embed(configuration); err != nil {
		return nil, fmt.Errorf("config.schema.json: %w", err)
	}
	return encode(schema{
		"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the directx-nri chart",
		"type": "object", "additionalProperties": false, "required": sections, "properties": properties,
		"definitions": more.Definitions,
	})
}

// propertiesOf returns the schemas of values by the last part of their names, and the
// names of those that are sections. It removes what it uses of the additions.
func propertiesOf(values []value, additions map[string]schema) (schema, []string) {
	properties, sections := schema{}, []string{}
	for _, v := range values {
		name := v.name[strings.LastIndex(v.name, ".")+1:]
		if v.children != nil {
			children, required := propertiesOf(v.children, additions)
			properties[name] = schema{"type": "object", "additionalProperties": false, "required": required, "properties": children}
			sections = append(sections, name)
			continue
		}
		s := schema{"description": v.description}
		_, key, _ := strings.Cut(v.name, ".")
		for _, key := range []string{"*." + key, v.name} {
			for keyword, of := range additions[key] {
				s[keyword] = of
			}
			if key == v.name || strings.HasPrefix(v.name, "linux.") {
				delete(additions, key)
			}
		}
		if _, ok := s["$ref"]; !ok {
			s["type"] = map[string]string{"!!str": "string", "!!bool": "boolean", "!!int": "integer", "!!seq": "array", "!!map": "object"}[v.node.Tag]
		}
		properties[name] = s
	}
	return properties, sections
}

// embed returns the schema of config.yaml as a definition. The keys apiVersion and kind
// are not required, because the chart adds them.
func embed(configuration []byte) (s schema, err error) {
	err = json.Unmarshal(configuration, &s)
	for _, keyword := range []string{"$id", "$schema", "title", "required"} {
		delete(s, keyword)
	}
	return s, err
}
