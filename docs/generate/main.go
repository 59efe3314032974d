// Command generate writes, from the types of config.yaml and the inventory, their JSON
// schemas and the lists of docs/configuration.md; from the chart's values.yaml, its
// values.schema.json; and the list of the metrics in docs/metrics.md.
package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"

	"github.com/invopop/jsonschema"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/internal/cli"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "generate: %v\n", err)
		os.Exit(1)
	}
}

//go:generate go run .

// Directories of the generated files, and of the types.
const (
	docs  = "../"
	chart = "../../deployments/helm/directx-nri/"
	root  = "../../"
)

func run() error {
	files, err := generate()
	if err != nil {
		return err
	}
	for path, content := range files {
		err = errors.Join(err, os.WriteFile(path, content, 0o644))
	}
	return err
}

// generate returns the content of the generated files by their paths.
func generate() (map[string][]byte, error) {
	comments, commentsErr := fieldComments()
	configSchema := buildSchema("config", config.Configuration{}, comments)
	configText, configErr := encode(configSchema)
	inventoryText, inventoryErr := encode(buildSchema("inventory", config.Inventory{}, nil))
	keys, keysErr := keyLists(configSchema)
	configPage, configPageErr := fill(docs+"configuration.md", keys)
	metrics, metricsErr := metricsList()
	metricsPage, metricsPageErr := fill(docs+"metrics.md", map[string]string{"metrics": metrics})
	valuesText, valuesErr := valuesSchema(configText)
	return map[string][]byte{
		root + "advertiser/config/config.schema.json":    configText,
		root + "advertiser/config/inventory.schema.json": inventoryText,
		docs + "configuration.md":                        configPage,
		docs + "metrics.md":                              metricsPage,
		chart + "values.schema.json":                     valuesText,
	}, errors.Join(commentsErr, configErr, inventoryErr, keysErr, configPageErr, metricsErr, metricsPageErr, valuesErr)
}

func encode(v any) ([]byte, error) {
	var text bytes.Buffer
	err := cli.PrintDocument(&text, cli.JSON, v)
	return text.Bytes(), err
}

// buildSchema returns the JSON schema of a file. Conditions between several keys are
// left to the programs.
func buildSchema(name string, file any, comments map[string]string) *jsonschema.Schema {
	reflector := jsonschema.Reflector{
		Anonymous: true, DoNotReference: true, ExpandedStruct: true, FieldNameTag: "yaml", RequiredFromJSONSchemaTags: true,
		LookupComment: func(t reflect.Type, field string) string { return comments[t.Name()+"."+field] },
	}
	schema := reflector.Reflect(file)
	schema.ID = jsonschema.ID("https://directx.microsoft.com/schemas/directx-nri/v1alpha1/" + name + ".schema.json")
	schema.Title = "directx-nri " + name
	complete(schema)
	return schema
}

func setTypes(s *jsonschema.Schema, names ...string) {
	s.Type, s.Extras = "", map[string]any{"type": names}
}

// complete sets, in a schema and those below it, what the tags imply: strings with a format can
// also be numbers, strings without limits have the usual ones, and a shorthand (see package
// config) is one of two types.
func complete(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if s.Properties != nil {
		for pair := s.Properties.Oldest(); pair != nil; pair = pair.Next() {
			complete(pair.Value)
		}
	}
	complete(s.AdditionalProperties)
	complete(s.Items)
	if s.Format != "" {
		s.Items, s.MinItems, s.MaxItems = nil, nil, nil // of a driver version
		setTypes(s, "string", "number")
	}
	if _, alsoNumber := s.Extras["type"]; (s.Type == "string" || alsoNumber) && s.Enum == nil {
		s.MinLength, s.MaxLength = cmp.Or(s.MinLength, new(uint64(1))), cmp.Or(s.MaxLength, new(uint64(config.MaxString)))
	}
	switch s.Format {
	case "vendor":
		s.Minimum, s.Maximum = "1", "65535"
	case "pattern":
		s.Pattern = `^\S(.*\S)?$`
	}
	s.Format = ""
	switch item := s.Items; {
	case s.Extras["shorthand"] == nil:
	case item.Properties == nil: // A string without the list has the limits of an item.
		s.MinLength, s.MaxLength, s.Pattern, s.Minimum, s.Maximum = item.MinLength, item.MaxLength, item.Pattern, item.Minimum, item.Maximum
		setTypes(s, "string", "number", "array")
	default:
		s.Extras = nil
		setTypes(item, "string", "object")
		item.MinLength, item.MaxLength = new(uint64(1)), new(uint64(config.MaxString))
	}
}

// fieldComments returns the comments of the struct fields of config.yaml, by type.Field.
// [jsonschema.Reflector.AddGoComments] ignores types that are not exported.
func fieldComments() (map[string]string, error) {
	comments := map[string]string{}
	for _, file := range []string{"advertiser/config/file.go", "internal/policy/policy.go", "internal/policy/types.go"} {
		parsed, err := parser.ParseFile(token.NewFileSet(), root+file, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, _ := n.(*ast.TypeSpec)
			if spec == nil {
				return true
			}
			if structure, ok := spec.Type.(*ast.StructType); ok {
				for _, field := range structure.Fields.List {
					for _, name := range field.Names {
						comments[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
					}
				}
			}
			return true
		})
	}
	return comments, nil
}

// metricCall is a call that creates a metric: its name, help and labels.
var metricCall = regexp.MustCompile(`\b(?:counter|gauge|histogram)s\("(\w+)",\s*"([^"]+)\."((?:, "\w+")*)\)`)

// metricsList returns the list of the metrics that internal/metrics creates.
func metricsList() (string, error) {
	files, err := filepath.Glob(root + "internal/metrics/*.go")
	list := ""
	for _, file := range files {
		text, readErr := os.ReadFile(file)
		err = errors.Join(err, readErr)
		for _, call := range metricCall.FindAllStringSubmatch(string(text), -1) {
			labels := strings.TrimPrefix(strings.NewReplacer(`"`, "", " ", "").Replace(call[3]), ",")
			list += fmt.Sprintf("- `directx_%s{%s}`: %s\n", call[1], labels, call[2])
		}
	}
	return strings.ReplaceAll(list, "{}", ""), err
}

// keyLists returns the lists of docs/configuration.md. Three have the keys below one key, the
// first has the others.
func keyLists(schema *jsonschema.Schema) (map[string]string, error) {
	lists := map[string]string{"settings": "", "resources": "", "runtimeFiles": "", "extraMounts": ""}
	for _, k := range keysBelow("", schema) {
		if k.Description == "" {
			return nil, fmt.Errorf("%s has no comment", k.path)
		}
		name, _, _ := strings.Cut(strings.ReplaceAll(k.path, "[", "."), ".")
		if _, ok := lists[name]; !ok {
			name = "settings"
		}
		lists[name] += fmt.Sprintf("- `%s`%s: %s\n", k.path, valuesOf(k.Schema), k.Description)
	}
	return lists, nil
}

// key is a key of config.yaml, with [] for each item of a list and VENDOR for a vendor's name.
type key struct {
	path string
	*jsonschema.Schema
}

// keysBelow returns the keys below path. Keys with other keys below them are left to the text.
func keysBelow(path string, s *jsonschema.Schema) (keys []key) {
	if s.Properties != nil {
		for pair := s.Properties.Oldest(); pair != nil; pair = pair.Next() {
			keys = append(keys, keysBelow(strings.TrimPrefix(path+"."+pair.Key, "."), pair.Value)...)
		}
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Properties != nil {
		keys = append(keys, keysBelow(path+".VENDOR", s.AdditionalProperties)...)
	}
	if s.Items != nil {
		keys = append(keys, keysBelow(path+"[]", s.Items)...)
	}
	if len(keys) > 0 || path == "apiVersion" || path == "kind" || strings.HasSuffix(path, "[]") {
		return keys
	}
	return append(keys, key{path, s})
}

// valuesOf returns the values of a key with its default in bold, or else an example, in
// parentheses; or nothing.
func valuesOf(s *jsonschema.Schema) string {
	var list []string
	for _, value := range s.Enum {
		if value != "" && value != s.Default {
			list = append(list, fmt.Sprintf("`%v`", value))
		}
	}
	switch {
	case s.Default != nil:
		list = append([]string{fmt.Sprintf("**`%v`**", s.Default)}, list...)
	case len(list) == 0 && len(s.Examples) > 0:
		list = []string{fmt.Sprintf("*`%v`*", s.Examples[0])}
	case len(list) == 0:
		return ""
	}
	return " (" + strings.Join(list, ", ") + ")"
}

// A list is between these lines.
const (
	begin = "<!-- %s: generated by `make generate` -->\n"
	end   = "<!-- end -->\n"
)

// fill returns the content of a file with its lists replaced.
func fill(path string, generated map[string]string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	page := string(text)
	for name, section := range generated {
		begin := fmt.Sprintf(begin, name)
		before, rest, found := strings.Cut(page, begin)
		_, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			return nil, fmt.Errorf("%s: the lines %q and %q are missing", path, begin, end)
		}
		page = before + begin + section + end + after
	}
	return []byte(page), nil
}
