package main

import (
	_ "embed"
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
	table := "| value | default | |\n|---|---|---|\n"
	var path []string
	comment := ""
	for line := range strings.Lines(string(text)) {
		parts := valueLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if parts == nil {
			comment = ""
			continue
		}
		if key := parts[3]; key != "" {
			path = append(path[:len(parts[1])/2], key)
			if comment != "" {
				table += fmt.Sprintf("| `%s` | `%s` | %s |\n", strings.Join(path, "."), parts[4], comment)
			}
		}
		comment = parts[2]
	}
	return table, err
}
