package config

import (
	"bytes"
	"cmp"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"go.yaml.in/yaml/v3"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// KeyError is one error in a YAML file.
type KeyError struct {
	File string
	Line int // 0 if unknown
	// Path is the key, for example resources[0].replicas, "" for the whole file.
	Path string
	Text string
}

// Error returns file:line: path: text.
func (p KeyError) Error() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		b.WriteString(":" + strconv.Itoa(p.Line))
	}
	if p.Path != "" {
		b.WriteString(": " + p.Path)
	}
	return b.String() + ": " + p.Text
}

// KeyErrors are the errors in a file, in the order of lines. There is at least one.
type KeyErrors []KeyError

// Error returns a line for each problem, 50 at most.
func (p KeyErrors) Error() string {
	const most = 50
	var lines []string
	for i, problem := range p {
		if i == most {
			lines = append(lines, fmt.Sprintf("%s: and %d more", problem.File, len(p)-most))
			break
		}
		lines = append(lines, problem.Error())
	}
	return strings.Join(lines, "\n")
}

// schemas are the JSON schemas of the two files, which command generate derives from
// [File] and [Inventory].
//
//go:embed config.schema.json inventory.schema.json
var schemas embed.FS

// document is a YAML file, with the problems found so far.
type document struct {
	name     string
	root     *yaml.Node // nil if the file cannot be parsed
	problems KeyErrors
}

// parseDocument parses a file that has a single YAML document.
func parseDocument(name string, data []byte, maxSize int) *document {
	d := &document{name: name}
	if len(data) > maxSize {
		d.fail("", "larger than %d bytes", maxSize)
		return d
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var first, second yaml.Node
	switch err := decoder.Decode(&first); {
	case errors.Is(err, io.EOF):
		d.fail("", "the file is empty: it needs apiVersion: %s and kind", APIVersion)
		return d
	case err != nil:
		d.yamlError(err)
		return d
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		d.fail("", "more than one YAML document")
		return d
	}
	var content any // Aliases are bounded, and keys unique.
	if err := first.Decode(&content); err != nil {
		d.yamlError(err)
		return d
	}
	d.root = expand(first.Content[0], false)
	return d
}

// expand returns a node with copies of what its aliases stand for, so that [document.set]
// changes one key only. If the node is shared, it returns a copy.
func expand(node *yaml.Node, shared bool) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		node, shared = node.Alias, true
	}
	if shared {
		node = &yaml.Node{Kind: node.Kind, Style: node.Style, Tag: node.Tag, Value: node.Value, Line: node.Line, Content: slices.Clone(node.Content)}
	}
	node.Anchor = ""
	for i, below := range node.Content {
		node.Content[i] = expand(below, shared)
	}
	return node
}

// decode decodes the document into v, unless there are problems already or it does not
// have the schema.
func (d *document) decode(schema string, v any) {
	if len(d.problems) > 0 {
		return
	}
	content := d.value(d.root)
	if err := d.validate(schema, content); err != nil {
		d.fail("", "%v", err)
	}
	if len(d.problems) == 0 {
		d.yamlError(d.root.Decode(v))
	}
}

// value returns what the schema applies to. A scalar that package yaml would change,
// such as 010 or 31.10, is a string.
func (d *document) value(node *yaml.Node) any {
	switch node.Kind {
	case yaml.MappingNode:
		mapping := map[string]any{}
		for i := 0; i+1 < len(node.Content); i += 2 {
			key, value := node.Content[i], d.value(node.Content[i+1])
			if merged, ok := value.(map[string]any); ok && key.ShortTag() == "!!merge" {
				maps.Copy(mapping, merged)
				continue
			}
			mapping[key.Value] = value
		}
		return mapping
	case yaml.SequenceNode:
		list := []any{}
		for _, item := range node.Content {
			list = append(list, d.value(item))
		}
		return list
	}
	switch node.ShortTag() {
	case "!!null":
		return nil
	case "!!bool":
		return strings.EqualFold(node.Value, "true")
	case "!!int":
		if n, err := strconv.Atoi(node.Value); err == nil && strconv.Itoa(n) == node.Value {
			return n
		}
	}
	if node.ShortTag() == "!!binary" || strings.ContainsFunc(node.Value, unicode.IsControl) {
		d.problems = append(d.problems, KeyError{File: d.name, Line: node.Line, Text: "not a single line of text"})
	}
	return node.Value
}

// validate adds what the schema says about the content. Its own error is about the
// schema.
func (d *document) validate(name string, content any) error {
	data, err := schemas.ReadFile(name)
	if err != nil {
		return err
	}
	var resource any
	if err := json.Unmarshal(data, &resource); err != nil {
		return err
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(name, resource); err != nil {
		return err
	}
	schema, err := compiler.Compile(name)
	if err != nil {
		return err
	}
	invalid := (*jsonschema.ValidationError)(nil)
	if err := schema.Validate(content); !errors.As(err, &invalid) {
		return err
	}
	for _, e := range leaves(invalid) {
		path := ""
		for _, name := range e.InstanceLocation {
			if _, err := strconv.Atoi(name); err == nil {
				path += "[" + name + "]"
			} else {
				path = join(path, name)
			}
		}
		refused, err := compiler.Compile(e.SchemaURL)
		if err != nil {
			return err
		}
		d.schemaError(path, e.ErrorKind, refused)
	}
	return nil
}

// leaves returns the errors without causes.
func leaves(e *jsonschema.ValidationError) (list []*jsonschema.ValidationError) {
	if len(e.Causes) == 0 {
		return []*jsonschema.ValidationError{e}
	}
	for _, cause := range e.Causes {
		list = append(list, leaves(cause)...)
	}
	return list
}

// schemaError adds an error of the value at path, with the schema of that value.
func (d *document) schemaError(path string, err jsonschema.ErrorKind, schema *jsonschema.Schema) {
	text := err.LocalizedString(message.NewPrinter(language.English))
	switch err := err.(type) {
	case *kind.AdditionalProperties:
		for _, key := range err.Properties {
			text := fmt.Sprintf("unknown key %q: want one of %s", key, strings.Join(slices.Sorted(maps.Keys(schema.Properties)), ", "))
			d.problems = append(d.problems, KeyError{File: d.name, Line: d.node(join(path, key)).Line, Path: path, Text: text})
		}
		return
	case *kind.Pattern:
		text = fmt.Sprintf("%q is not valid", err.Got)
		if len(schema.Examples) > 0 {
			text += fmt.Sprintf(": use a value such as %v", schema.Examples[0])
		}
	case *kind.Minimum:
		text = fmt.Sprintf("%s is out of range: use %s or more", err.Got.RatString(), err.Want.RatString())
	case *kind.Maximum:
		text = fmt.Sprintf("%s is out of range: use %s or less", err.Got.RatString(), err.Want.RatString())
	case *kind.MinLength:
		text = "no value: set one, or remove the key"
	case *kind.Type:
		if slices.Contains([]string{"on", "off", "yes", "no"}, d.node(path).Value) && slices.Equal(err.Want, []string{"boolean"}) {
			return // Package yaml decodes them.
		}
		if err.Got == "null" {
			text = "no value: set one, or remove the key"
		}
	}
	d.fail(path, "%s", text)
}

// err returns the problems, or nil.
func (d *document) err() error {
	if len(d.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(d.problems, func(a, b KeyError) int { return cmp.Compare(a.Line, b.Line) })
	return d.problems
}

// fail adds a problem with the key at path.
func (d *document) fail(path, format string, args ...any) {
	line := 0
	if path != "" {
		line = d.node(path).Line
	}
	d.problems = append(d.problems, KeyError{File: d.name, Line: line, Path: path, Text: fmt.Sprintf(format, args...)})
}

// check adds err, if there is one, as a problem with the key at path, and reports
// whether there is none.
func (d *document) check(path string, err error) bool {
	if err != nil {
		d.fail(path, "%v", err)
	}
	return err == nil
}

// node returns the value of the key at path, or of the nearest key that contains it.
func (d *document) node(path string) *yaml.Node {
	node := d.root
	for name := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		next := child(node, name)
		if next == nil {
			break
		}
		node = next
	}
	return node
}

// set sets the key at path, which has no list in it.
func (d *document) set(path string, value *yaml.Node) {
	node := d.root
	names := strings.Split(path, ".")
	for i, name := range names {
		next := child(node, name)
		if next == nil {
			next = &yaml.Node{Kind: yaml.MappingNode}
			node.Content = append(node.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, next)
		}
		if i == len(names)-1 {
			*next = *value
		}
		node = next
	}
}

// child returns the value of a mapping's key, or the item of a sequence, or nil.
func child(node *yaml.Node, name string) *yaml.Node {
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == name {
				return node.Content[i+1]
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i]
		}
	}
	return nil
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(.*)$`)

// yamlError adds the errors of package yaml.
func (d *document) yamlError(err error) {
	if err == nil {
		return
	}
	texts := []string{err.Error()}
	if several := (*yaml.TypeError)(nil); errors.As(err, &several) {
		texts = several.Errors
	}
	for _, text := range texts {
		match := yamlLine.FindStringSubmatch(strings.ReplaceAll(text, "\n", " "))
		line, _ := strconv.Atoi(match[1])
		d.problems = append(d.problems, KeyError{File: d.name, Line: line, Text: match[2]})
	}
}

// stringOr decodes a string into text, or a mapping into v.
func stringOr(node *yaml.Node, text *string, v any) error {
	if node.Kind == yaml.ScalarNode {
		*text = node.Value
		return nil
	}
	return node.Decode(v)
}
