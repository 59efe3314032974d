// Command generate writes docs/config.schema.json and the tables of
// docs/configuration.md from the types of config.yaml. Its arguments are the
// directory of package config and that of the documentation.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/invopop/jsonschema"

	"directx-nri/internal/config"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "generate: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("the arguments are the directories of package config and of the documentation")
	}
	files, err := generate(args[0], args[1])
	if err != nil {
		return err
	}
	for path, content := range files {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generate returns the content of the generated files by their paths.
func generate(source, docs string) (map[string][]byte, error) {
	schema, err := buildSchema(filepath.Join(source, "file.go"))
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(schema); err != nil {
		return nil, err
	}
	pagePath := filepath.Join(docs, "configuration.md")
	page, err := os.ReadFile(pagePath)
	if err != nil {
		return nil, err
	}
	filled, err := fill(string(page), rows("", schema))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pagePath, err)
	}
	return map[string][]byte{filepath.Join(docs, "config.schema.json"): text.Bytes(), pagePath: []byte(filled)}, nil
}

// buildSchema returns the JSON schema of config.yaml. Conditions between several
// keys are left to the programs.
func buildSchema(file string) (*jsonschema.Schema, error) {
	comments, err := fieldComments(file)
	if err != nil {
		return nil, err
	}
	reflector := jsonschema.Reflector{
		Anonymous: true, DoNotReference: true, ExpandedStruct: true, FieldNameTag: "yaml", RequiredFromJSONSchemaTags: true,
		LookupComment: func(t reflect.Type, field string) string { return comments[t.Name()+"."+field] },
	}
	plain := reflector
	// What UnmarshalYAML methods accept besides the type itself.
	reflector.Mapper = func(t reflect.Type) *jsonschema.Schema {
		switch t.Name() {
		case "texts":
			one := &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "string", MinLength: ptr(1), MaxLength: ptr(256)}, {Type: "integer", Minimum: "1", Maximum: "65535"}}}
			return &jsonschema.Schema{AnyOf: append(one.AnyOf[:2:2], &jsonschema.Schema{Type: "array", MinItems: ptr(1), Items: one})}
		case "addedFile":
			mapping := plain.ReflectFromType(t)
			mapping.Version = ""
			return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "string", MinLength: ptr(1)}, mapping}}
		}
		return nil
	}
	schema := reflector.Reflect(config.File{})
	schema.ID, schema.Title = "https://directx.microsoft.com/schemas/directx-nri/v1alpha1/config.schema.json", "directx-nri configuration"
	for key, value := range map[string]string{"apiVersion": config.APIVersion, "kind": config.Kind} {
		property, _ := schema.Properties.Get(key)
		property.Const = value
	}
	return schema, nil
}

func ptr(n uint64) *uint64 { return &n }

// fieldComments returns the comments of all struct fields in a file, by type.Field.
func fieldComments(file string) (map[string]string, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	comments := map[string]string{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if structure, ok := spec.Type.(*ast.StructType); ok {
			for _, field := range structure.Fields.List {
				comments[spec.Name.Name+"."+field.Names[0].Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
			}
		}
		return true
	})
	return comments, nil
}

// row is a key in a table.
type row struct{ path, schemaDefault, example, description string }

// rows returns the keys of a schema, with [] for each item of a list and VENDOR for
// a vendor's name.
func rows(path string, s *jsonschema.Schema) (list []row) {
	if strings.HasSuffix(path, "[]") || path == "runtimeFiles.VENDOR" || path == "" {
		// The item is described with its list.
	} else {
		r := row{path: path, description: s.Description}
		if s.Default != nil {
			r.schemaDefault = fmt.Sprint(s.Default)
		}
		if len(s.Examples) > 0 {
			r.example = fmt.Sprint(s.Examples[0])
		}
		var enum []string
		for _, value := range s.Enum {
			if value != "" {
				enum = append(enum, fmt.Sprint(value))
			}
		}
		if r.example == "" {
			r.example = strings.Join(enum, "`, `")
		}
		list = append(list, r)
	}
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
	for _, alternative := range s.AnyOf {
		if alternative.Properties != nil {
			list = append(list, rows(path, alternative)...)
		}
	}
	return list
}

// A table in docs/configuration.md is between these lines.
const (
	begin = "<!-- %s: made by `make generate` -->\n"
	end   = "<!-- end -->\n"
)

// fill replaces the tables of the page. Three have the keys below one key, the
// first has the others.
func fill(page string, all []row) (string, error) {
	tables := map[string]*strings.Builder{}
	for _, name := range []string{"settings", "resources", "runtimeFiles", "extraMounts"} {
		tables[name] = &strings.Builder{}
		tables[name].WriteString("| key | default | values or example | flag | description |\n|---|---|---|---|---|\n")
	}
	flags := config.FlagNames()
	for _, r := range all {
		name, _, _ := strings.Cut(strings.ReplaceAll(r.path, "[", "."), ".")
		table, ok := tables[name]
		if !ok {
			table = tables["settings"]
		}
		flag := flags[r.path]
		if flag != "" {
			flag = "--" + flag
		}
		fmt.Fprintf(table, "| `%s` | %s | %s | %s | %s |\n", r.path, code(r.schemaDefault), code(r.example), code(flag), strings.ReplaceAll(r.description, "|", `\|`))
	}
	for name, table := range tables {
		before, rest, found := strings.Cut(page, fmt.Sprintf(begin, name))
		_, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			return "", fmt.Errorf("no lines for the table %s", name)
		}
		page = before + fmt.Sprintf(begin, name) + table.String() + end + after
	}
	return page, nil
}

func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(text, "|", `\|`) + "`"
}
