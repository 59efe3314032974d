package config

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"sigs.k8s.io/yaml"
)

// The schemas of the files. The chart's schema and docs/configuration.md are generated from them.
const (
	configSchema    = "config.schema.json"
	inventorySchema = "inventory.schema.json"
)

//go:embed *.schema.json presets.yaml
var files embed.FS

// problems are the errors in a file: the path of a key, such as resources[0].replicas, and the cause.
type problems []string

func (p *problems) add(path, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if path != "" { // Otherwise, it is about the whole file.
		text = path + ": " + text
	}
	*p = append(*p, text)
}

// err returns an error with a line for each problem, nil if there are none.
func (p problems) err() error {
	if len(p) == 0 {
		return nil
	}
	slices.Sort(p)
	return errors.New(strings.Join(p, "\n"))
}

var (
	documentMark = regexp.MustCompile(`(?m)^(---|\.\.\.)(\s|$)`)
	// contentLine matches a line that is no comment and no directive.
	contentLine = regexp.MustCompile(`(?m)^[\s\x{FEFF}]*[^#%\s\x{FEFF}]`)
)

// parse returns the one YAML document in a file, as package json decodes it.
func parse(data []byte) (any, error) {
	documents := 0
	for _, text := range documentMark.Split(string(data), -1) {
		if contentLine.MatchString(text) {
			documents++
		}
	}
	switch {
	case documents == 0:
		return nil, errors.New("it is empty, want a YAML document")
	case documents > 1:
		return nil, fmt.Errorf("%d YAML documents, want one", documents)
	}
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, errors.New(strings.Join(strings.Fields(err.Error()), " "))
	}
	return jsonschema.UnmarshalJSON(bytes.NewReader(text))
}

// validate returns all differences of a document from a schema.
func validate(document any, name string) error {
	compiler := jsonschema.NewCompiler()
	for _, name := range []string{configSchema, inventorySchema} {
		text, _ := files.ReadFile(name) // It is embedded.
		content, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err = errors.Join(err, compiler.AddResource(name, content)); err != nil {
			return err
		}
	}
	schema, err := compiler.Compile(name)
	if err != nil {
		return err
	}
	err = schema.Validate(document)
	if invalid, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		var found problems
		found.addCauses(compiler, invalid)
		return found.err()
	}
	return err
}

// addCauses adds the innermost causes of an error. The description of a pattern is what a user
// understands.
func (p *problems) addCauses(compiler *jsonschema.Compiler, invalid *jsonschema.ValidationError) {
	for _, cause := range invalid.Causes {
		p.addCauses(compiler, cause)
	}
	if len(invalid.Causes) > 0 {
		return
	}
	text := invalid.DetailedOutput().Error.String()
	switch invalid.ErrorKind.(type) {
	case *kind.Pattern, *kind.Not:
		if schema, err := compiler.Compile(invalid.SchemaURL); err == nil {
			text = "not valid: want " + schema.Description
		}
	}
	path := strings.Join(invalid.InstanceLocation, ".")
	p.add(index.ReplaceAllString(path, "[$1]"), "%s", text)
}

// index matches the index of an item of a list in a path.
var index = regexp.MustCompile(`\.([0-9]+)\b`)

// edit replaces the values at path in a document. In path, * is each item of a list and each value of
// a mapping.
func edit(document any, path string, change func(any) any) any {
	if path == "" {
		return change(document)
	}
	key, rest, _ := strings.Cut(path, ".")
	switch node := document.(type) {
	case map[string]any:
		for name, value := range node {
			if key == name || key == "*" {
				node[name] = edit(value, rest, change)
			}
		}
	case []any:
		for i, item := range node {
			node[i] = edit(item, rest, change)
		}
	}
	return document
}

// asList returns a list of one item for the item alone.
func asList(value any) any {
	if _, ok := value.([]any); ok {
		return value
	}
	return []any{value}
}

// asMapping returns a function that returns a mapping with one key for the key's value alone.
func asMapping(key string) func(any) any {
	return func(value any) any {
		if _, ok := value.(map[string]any); ok {
			return value
		}
		return map[string]any{key: value}
	}
}

// asBytes returns an amount of memory in bytes. The schema ensures that it fits 64 bits.
func asBytes(value any) any {
	var n uint64
	var unit string
	if _, err := fmt.Sscanf(fmt.Sprint(value), "%d%s", &n, &unit); err != nil {
		return value // It has no unit.
	}
	return n << (10 * (1 + strings.Index("KMGT", unit[:1])))
}

// decode stores a document in target.
func decode(document, target any) error {
	text, err := json.Marshal(document)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, target)
}
