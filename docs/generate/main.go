// Command generate writes, from the types of config.yaml and the inventory, their JSON
// schemas and the lists of docs/configuration.md; from the chart's values.yaml, its
// values.schema.json; and the list of the metrics in docs/metrics.md.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"strings"

	"github.com/invopop/jsonschema"

	"github.com/directx-nri/directx-nri/internal/config"
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
	docs    = "../"
	chart   = "../../deployments/helm/directx-nri/"
	shipped = "../../internal/"
)

func run() error {
	files, err := generate()
	for path, content := range files {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return err
}

// generate returns the content of the generated files by their paths.
func generate() (map[string][]byte, error) {
	comments, err := fieldComments()
	if err != nil {
		return nil, err
	}
	schema := buildSchema("config", config.File{}, comments)
	text, err := encode(schema)
	if err != nil {
		return nil, err
	}
	inventory, err := encode(buildSchema("inventory", config.Inventory{}, nil))
	if err != nil {
		return nil, err
	}
	keys := rows("", schema)
	for _, r := range keys {
		if r.description == "" {
			return nil, fmt.Errorf("%s has no comment", r.path)
		}
	}
	page, err := fill(docs+"configuration.md", lists(keys))
	if err != nil {
		return nil, err
	}
	metrics, err := metricsList()
	if err != nil {
		return nil, err
	}
	metricsPage, err := fill(docs+"metrics.md", map[string]string{"metrics": metrics})
	if err != nil {
		return nil, err
	}
	valuesText, err := os.ReadFile(chart + "values.yaml")
	if err != nil {
		return nil, err
	}
	valuesSchema, err := chartSchemaOf(valuesText, text)
	return map[string][]byte{
		shipped + "config/config.schema.json": text, shipped + "config/inventory.schema.json": inventory, docs + "configuration.md": page, docs + "metrics.md": metricsPage,
		chart + "values.schema.json": valuesSchema,
	}, err
}

func encode(v any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(v)
	return text.Bytes(), err
}

// buildSchema returns the JSON schema of a file. Conditions between several keys are
// left to the programs.
func buildSchema(name string, file any, comments map[string]string) *jsonschema.Schema {
	reflector := jsonschema.Reflector{
		Anonymous: true, DoNotReference: true, ExpandedStruct: true, FieldNameTag: "yaml", RequiredFromJSONSchemaTags: true,
		LookupComment: func(t reflect.Type, field string) string { return comments[t.Name()+"."+field] },
	}
	plain := reflector
	// What can also be written as one text.
	reflector.Mapper = func(t reflect.Type) *jsonschema.Schema {
		switch t.Name() {
		case "Vendors", "Patterns":
			return &jsonschema.Schema{Type: "array", Items: &jsonschema.Schema{Type: "string"}, Extras: types("string", "number", "array")}
		case "AddedFile", "RuntimeFile", "DeviceNode", "Library":
			mapping := plain.ReflectFromType(t)
			mapping.Version, mapping.Extras = "", types("string", "object")
			return mapping
		}
		return nil
	}
	schema := reflector.Reflect(file)
	schema.ID = jsonschema.ID("https://directx.microsoft.com/schemas/directx-nri/v1alpha1/" + name + ".schema.json")
	schema.Title = "directx-nri " + name
	completeTexts(schema)
	return schema
}

func types(names ...string) map[string]any { return map[string]any{"type": names} }

// completeTexts sets the types of texts that have a format, which can also be numbers, and
// the lengths of texts that have no others.
func completeTexts(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	completeTexts(s.AdditionalProperties)
	if s.Properties != nil {
		for pair := s.Properties.Oldest(); pair != nil; pair = pair.Next() {
			completeTexts(pair.Value)
		}
	}
	if s.Format != "" && s.Enum == nil {
		s.Extras, s.Items, s.MinItems, s.MaxItems = types("string", "number"), nil, nil, nil
	}
	if s.Format == "vendor" {
		s.Minimum, s.Maximum = "1", "65535"
	}
	if s.Format == "pattern" {
		s.MaxLength, s.Pattern = ptr(256), `^\S(.*\S)?$`
	}
	s.Format = ""
	completeTexts(s.Items)
	_, several := s.Extras["type"]
	if (s.Type == "string" || several) && s.Enum == nil {
		s.MinLength, s.MaxLength = cmp.Or(s.MinLength, ptr(1)), cmp.Or(s.MaxLength, ptr(config.MaxText))
	}
	if several {
		s.Type = ""
	}
	if one := s.Items; several && one != nil { // It can stand without the list.
		s.MinLength, s.MaxLength, s.Pattern, s.Minimum, s.Maximum = one.MinLength, one.MaxLength, one.Pattern, one.Minimum, one.Maximum
	}
}

func ptr(n uint64) *uint64 { return &n }

// fieldComments returns the comments of the struct fields of config.yaml, by type.Field.
// [jsonschema.Reflector.AddGoComments] ignores types that are not exported.
func fieldComments() (map[string]string, error) {
	comments := map[string]string{}
	for _, file := range []string{"config/file.go", "policy/policy.go", "policy/types.go"} {
		parsed, err := parser.ParseFile(token.NewFileSet(), shipped+file, nil, parser.ParseComments)
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
					names := field.Names
					if embedded, ok := field.Type.(*ast.Ident); ok && names == nil {
						names = []*ast.Ident{embedded}
					}
					for _, name := range names {
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
	list := ""
	for _, file := range []string{"metrics/gpus.go", "metrics/metrics.go"} {
		text, err := os.ReadFile(shipped + file)
		if err != nil {
			return "", err
		}
		for _, call := range metricCall.FindAllStringSubmatch(string(text), -1) {
			labels := strings.TrimPrefix(strings.NewReplacer(`"`, "", " ", "").Replace(call[3]), ",")
			list += fmt.Sprintf("- `directx_%s{%s}`: %s\n", call[1], labels, call[2])
		}
	}
	return strings.ReplaceAll(list, "{}", ""), nil
}

// row is a key in a list.
type row struct{ path, values, description string }

// rows returns the keys of a schema, with [] for each item of a list and VENDOR for
// a vendor's name. Keys with other keys below them are left to the text.
func rows(path string, s *jsonschema.Schema) (list []row) {
	if s.Properties != nil {
		for pair := s.Properties.Oldest(); pair != nil; pair = pair.Next() {
			list = append(list, rows(strings.TrimPrefix(path+"."+pair.Key, "."), pair.Value)...)
		}
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Properties != nil {
		list = append(list, rows(path+".VENDOR", s.AdditionalProperties)...)
	}
	if s.Items != nil {
		list = append(list, rows(path+"[]", s.Items)...)
	}
	if len(list) > 0 || path == "apiVersion" || path == "kind" || strings.HasSuffix(path, "[]") {
		return list
	}
	return append(list, row{path, defaults(s), s.Description})
}

// defaults returns the values of a key with its default in bold, or else an example, in
// parentheses; or nothing.
func defaults(s *jsonschema.Schema) string {
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

// lists returns the lists of docs/configuration.md. Three have the keys below one
// key, the first has the others.
func lists(all []row) map[string]string {
	lists := map[string]string{"settings": "", "resources": "", "runtimeFiles": "", "extraMounts": ""}
	for _, r := range all {
		name, _, _ := strings.Cut(strings.ReplaceAll(r.path, "[", "."), ".")
		if _, ok := lists[name]; !ok {
			name = "settings"
		}
		lists[name] += fmt.Sprintf("- `%s`%s: %s\n", r.path, r.values, r.description)
	}
	return lists
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
