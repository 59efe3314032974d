package main

import (
	_ "embed"
	"maps"

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
