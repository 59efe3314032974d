package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:embed chart.schema.yaml
var chartSchema []byte

// valuesSchema returns values.schema.json: the schema of the chart's values, with that of config.yaml.
func valuesSchema(configuration schema) ([]byte, error) {
	var values schema
	if err := yaml.UnmarshalStrict(chartSchema, &values); err != nil {
		return nil, err
	}
	definitions := values["definitions"].(schema)
	maps.Copy(definitions, configuration["definitions"].(schema))
	mapping := maps.Clone(configuration)
	for _, keyword := range []string{"$schema", "title", "definitions", "required"} { // The chart adds apiVersion and kind.
		delete(mapping, keyword)
	}
	definitions["configurationMapping"] = mapping
	return encode(values)
}

// valueLine is a line of values.yaml: a comment, or a key with what follows.
var valueLine = regexp.MustCompile(`^( *)(?:# (.*)|(\w+):(?: (.+))?)$`)

// valuesTable returns a table of the chart's values that have a comment in values.yaml.
func valuesTable() (string, error) {
	text, err := os.ReadFile(chart + "values.yaml")
	var values map[string]any
	if err = errors.Join(err, yaml.Unmarshal(text, &values)); err != nil {
		return "", err
	}
	table := "| value | default | |\n|---|---|---|\n"
	var path []string
	comment := ""
	for line := range strings.Lines(string(text)) {
		parts := valueLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if parts == nil || parts[2] != "" {
			comment = ""
			if parts != nil {
				comment = parts[2]
			}
			continue
		}
		path = append(path[:len(parts[1])/2], parts[3])
		if comment != "" {
			byDefault := parts[4]
			if byDefault == "" {
				byDefault, err = flow(values, path)
			}
			table += fmt.Sprintf("| `%s` | `%s` | %s |\n", strings.Join(path, "."), byDefault, comment)
		}
		comment = ""
	}
	return table, err
}

// flow returns the value at path in one line.
func flow(values map[string]any, path []string) (string, error) {
	var value any = values
	for _, key := range path {
		value = value.(map[string]any)[key]
	}
	text, err := json.Marshal(value)
	return string(text), err
}
