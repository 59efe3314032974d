package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
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

// document is a YAML file that is read strictly, with the problems found so far.
type document struct {
	name     string
	data     []byte
	root     *yaml.Node   // nil if the file cannot be parsed
	fileType reflect.Type // that the document is decoded into
	problems KeyErrors
}

// parseDocument parses a file that has a single YAML document of the given kind.
// Values that mayBeEmpty does not list by their path must not be empty.
func parseDocument(name string, data []byte, maxSize int, kind string, mayBeEmpty ...string) *document {
	d := &document{name: name, data: data}
	if len(data) > maxSize {
		d.fail("", "larger than %d bytes", maxSize)
		return d
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var first, second yaml.Node
	switch err := decoder.Decode(&first); {
	case errors.Is(err, io.EOF):
		d.fail("", "the file is empty: it needs apiVersion: %s and kind: %s", APIVersion, kind)
		return d
	case err != nil:
		d.yamlError(err)
		return d
	}
	root := first.Content[0]
	if root.Kind != yaml.MappingNode {
		d.fail("", "not a mapping: it needs apiVersion: %s and kind: %s", APIVersion, kind)
		return d
	}
	d.root = root
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		d.fail("", "more than one YAML document")
		return d
	}
	// Errors in a file of another kind or version mean nothing.
	for _, head := range []struct{ key, want string }{{"apiVersion", APIVersion}, {"kind", kind}} {
		if got := child(root, head.key); got == nil {
			d.fail("", "%s is missing: want %s", head.key, head.want)
		} else if got.Value != head.want {
			d.fail(head.key, "%q is not supported: want %s", got.Value, head.want)
		}
	}
	if len(d.problems) == 0 {
		d.checkScalars(root, "", mayBeEmpty)
	}
	return d
}

// decode decodes the document into v and refuses unknown keys, unless there are
// problems already.
func (d *document) decode(v any) {
	if len(d.problems) > 0 {
		return
	}
	decoder := yaml.NewDecoder(bytes.NewReader(d.data))
	decoder.KnownFields(true)
	d.fileType = reflect.TypeOf(v)
	if err := decoder.Decode(v); err != nil {
		d.yamlError(err)
	}
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
	d.problems = append(d.problems, KeyError{File: d.name, Line: d.line(path), Path: path, Text: fmt.Sprintf(format, args...)})
}

// check adds err, if there is one, as a problem with the key at path, and reports
// whether there is none.
func (d *document) check(path string, err error) bool {
	if err != nil {
		d.fail(path, "%v", err)
	}
	return err == nil
}

// line returns the line of the key at path, or of the nearest that contains it.
func (d *document) line(path string) int {
	node := d.root
	if node == nil {
		return 0
	}
	line := 0
	for name := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		next := child(node, name)
		if next == nil {
			break
		}
		node, line = next, next.Line
	}
	return line
}

// child returns the value of a mapping's key, or the item of a sequence, or nil.
func child(node *yaml.Node, name string) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
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

// checkScalars refuses values that decoding would accept and guess: null, binary
// data, empty strings, and texts of more than one line.
func (d *document) checkScalars(node *yaml.Node, path string, mayBeEmpty []string) {
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			d.checkScalars(node.Content[i+1], join(path, node.Content[i].Value), mayBeEmpty)
		}
	case yaml.SequenceNode:
		for i, item := range node.Content {
			d.checkScalars(item, fmt.Sprintf("%s[%d]", path, i), mayBeEmpty)
		}
	case yaml.ScalarNode:
		switch tag := node.ShortTag(); {
		case tag == "!!null" || node.Value == "" && !slices.Contains(mayBeEmpty, path):
			d.fail(path, "no value: set one, or remove the key")
		case tag == "!!binary" || strings.ContainsFunc(node.Value, unicode.IsControl):
			d.fail(path, "not a single line of text")
		}
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

var (
	yamlLine     = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(.*)$`)
	unknownField = regexp.MustCompile(`^field (.*) not found in type (.+)$`)
	wrongType    = regexp.MustCompile("^cannot unmarshal !!(\\w+)( `.*`)? into \\S+$")
)

// yamlError adds the errors of package yaml, in which types of Go mean nothing.
func (d *document) yamlError(err error) {
	texts := []string{err.Error()}
	if several := (*yaml.TypeError)(nil); errors.As(err, &several) {
		texts = several.Errors
	}
	for _, text := range texts {
		text = strings.ReplaceAll(text, "\n", " ")
		match := yamlLine.FindStringSubmatch(text)
		line, _ := strconv.Atoi(match[1])
		text = match[2]
		if field := unknownField.FindStringSubmatch(text); field != nil {
			text = unknownKey(field[1], keysOf(d.fileType, field[2]))
		}
		text = wrongType.ReplaceAllString(text, "wrong type: this key does not accept a !!$1$2")
		d.problems = append(d.problems, KeyError{File: d.name, Line: line, Text: text})
	}
}

// unknownKey returns the error for a key, with a hint for keys of earlier versions.
func unknownKey(key string, known []string) string {
	hints := map[string]string{
		"folder": "it is called directory", "hostFolders": "it is called hostDirectories",
		"stateDir": "use the flag --state-dir", "runtimeDir": "use the flag --runtime-dir", "hostRoot": "use the flag --host-root",
		"containerOS": "use the flag --node-os", "kubelet": "use the flags --kubelet-dir and --pod-resources-socket",
		"containerd":        "use the flags --nri-socket, --nri-index and --cri-socket",
		"pluginAddress":     "use the flag --metrics-address of directx-nri",
		"exclusiveRequests": "it was removed: for whole GPUs use a rule with replicas: 1",
	}
	hint, ok := hints[key]
	if !ok {
		hint = "want one of " + strings.Join(known, ", ")
	}
	return fmt.Sprintf("unknown key %q: %s", key, hint)
}

// keysOf returns the keys of the struct with the given name in or below t.
func keysOf(t reflect.Type, name string) []string {
	switch t.Kind() {
	case reflect.Map, reflect.Pointer, reflect.Slice:
		return keysOf(t.Elem(), name)
	case reflect.Struct:
	default:
		return nil
	}
	var keys, below []string
	for i := range t.NumField() {
		if key, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ","); key != "" {
			keys = append(keys, key)
			below = append(below, keysOf(t.Field(i).Type, name)...)
		}
	}
	if t.String() == name {
		return keys
	}
	return below
}

// typeError returns an error that package yaml collects with those of other keys.
func typeError(node *yaml.Node, format string, args ...any) error {
	return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: ", node.Line) + fmt.Sprintf(format, args...)}}
}

// decodeKnown decodes a mapping into the struct v. It refuses keys other than
// known, which [yaml.Node.Decode] accepts.
func decodeKnown(node *yaml.Node, v any, known ...string) error {
	if node.Kind != yaml.MappingNode {
		return typeError(node, "wrong type: use a string, or a mapping with %s", strings.Join(known, ", "))
	}
	for i := 0; i < len(node.Content); i += 2 {
		if key := node.Content[i]; !slices.Contains(known, key.Value) {
			return typeError(key, "%s", unknownKey(key.Value, known))
		}
	}
	return node.Decode(v)
}

// integer is a whole number. Package yaml alone would cut the fraction off 1.5.
type integer int

// UnmarshalYAML implements [yaml.Unmarshaler].
func (n *integer) UnmarshalYAML(node *yaml.Node) error {
	value, err := strconv.Atoi(node.Value)
	if node.ShortTag() != "!!int" || err != nil || strconv.Itoa(value) != node.Value {
		return typeError(node, "%q is not a whole number", node.Value)
	}
	*n = integer(value)
	return nil
}

// texts is a list of strings, or a single one.
type texts []string

// UnmarshalYAML implements [yaml.Unmarshaler].
func (t *texts) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		*t = texts{node.Value}
		return nil
	}
	if err := node.Decode((*[]string)(t)); err != nil {
		return err
	}
	if len(*t) == 0 {
		return typeError(node, "the list is empty, so nothing matches: add a value, or remove the key")
	}
	return nil
}
