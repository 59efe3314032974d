package config

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// readSchema returns a schema that command docs/generate wrote.
func readSchema(t testing.TB, name string) *jsonschema.Schema {
	t.Helper()
	data, err := os.ReadFile(name)
	var schema any
	compiler := jsonschema.NewCompiler()
	testutil.NoError(t, err, json.Unmarshal(data, &schema), compiler.AddResource(name, schema))
	compiled, err := compiler.Compile(name)
	testutil.NoError(t, err)
	return compiled
}

// oldBooleans finds words that the decoder takes for true and false, and editors for strings.
var oldBooleans = regexp.MustCompile(`\b(on|off|yes|no)\b`)

// content returns a value of a YAML file as an editor validates it.
func content(node *yaml.Node) any {
	switch node.Kind {
	case yaml.AliasNode:
		return content(node.Alias)
	case yaml.MappingNode:
		mapping := map[string]any{}
		for key, value := range entries(node) {
			mapping[key] = content(value)
		}
		return mapping
	case yaml.SequenceNode:
		list := []any{}
		for _, item := range node.Content {
			list = append(list, content(item))
		}
		return list
	}
	var value any
	if tag := node.ShortTag(); tag != "!!bool" && tag != "!!int" && tag != "!!float" && tag != "!!null" || node.Decode(&value) != nil {
		return node.Value
	}
	return value
}

// TestSchemaRefuses: what the decoder refuses by the types and tags of the fields, the schemas
// refuse, too. The fuzz targets prove the opposite.
func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	for schema, texts := range map[string][]string{
		"config.schema.json": {
			"a: b", "log: {}", head + "log: {colour: red}", head + "shim: 3", head + "replicas: '3'", head + "replicas: 1.5", head + "replicas:", head + "replicas: 0", head + "replicas: 1025",
			head + "resources: []", head + "resources: [" + strings.Repeat("{name: a.b/c},", 257) + "]", head + "resources: [{}]",
			rules("{name: ''}"), rules("{name: " + strings.Repeat("a", 309) + "}"),
			rules("{name: a.b/c, match: {description: []}}"), rules("{name: a.b/c, match: {description: ' a'}}"),
			rules("{name: a.b/c, match: {vendor: 65536}}"), rules("{name: a.b/c, match: {integrated: 1}}"),
			head + "injection: x", head + "shim: {log: 3}", head + "metrics: {address: x}", head + "extraMounts: {destinations: []}",
			head + "runtimeFiles: {amd: {add: [{destination: a}]}}", head + "runtimeFiles: []",
		},
		"inventory.schema.json": {
			inventoryHead + "- a", device("numaNode: -1"), device("uuid: x"), device("health: {}"), device("dedicatedMemory: true"),
			device("description: ''"), device("linux: {deviceNodes: [{source: a}]}"), device("luid: [1]"),
		},
	} {
		compiled := readSchema(t, schema)
		for _, text := range texts {
			d, err := parse("file.yaml", []byte(text), maxInventory)
			testutil.NoError(t, err)
			if schema == "config.schema.json" {
				d.decode(&Configuration{})
			} else {
				d.decode(&Inventory{})
			}
			if err := compiled.Validate(content(d.root)); err == nil || len(d.errors) == 0 {
				t.Errorf("%s: decoder: %v; schema: %v", text, d.errors, err)
			}
		}
	}
}

// keyword matches a part of a jsonschema tag: type and default are for the schema only.
var keyword = regexp.MustCompile(`^(required|(enum|format|pattern|example|type|default)=.*|(minLength|maxLength|minItems|maxItems|minimum|maximum)=[0-9]+)$`)

// TestTags: limitsOf ignores what it does not know, such as a keyword with a typing error.
func TestTags(t *testing.T) {
	t.Parallel()
	checked := 0
	var check func(reflect.Type)
	check = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			check(typ.Elem())
		case reflect.Struct:
			for i := range typ.NumField() {
				field := typ.Field(i)
				for part := range strings.SplitSeq(strings.ReplaceAll(field.Tag.Get("jsonschema"), `\,`, ""), ",") {
					if checked++; part != "" && !keyword.MatchString(part) {
						t.Errorf("%s.%s: unknown keyword %q", typ, field.Name, part)
					}
				}
				check(field.Type)
			}
		}
	}
	check(reflect.TypeFor[Configuration]())
	check(reflect.TypeFor[Inventory]())
	if checked < 50 {
		t.Errorf("%d parts of tags were checked", checked)
	}
}
