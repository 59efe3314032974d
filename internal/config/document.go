package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

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
func (e KeyError) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		b.WriteString(":" + strconv.Itoa(e.Line))
	}
	if e.Path != "" {
		b.WriteString(": " + e.Path)
	}
	return b.String() + ": " + e.Text
}

// KeyErrors are the errors in a file, in the order of lines. There is at least one.
type KeyErrors []KeyError

// Error returns a line for each error, 50 at most.
func (e KeyErrors) Error() string {
	const most = 50
	var lines []string
	for i, one := range e {
		if i == most {
			lines = append(lines, fmt.Sprintf("%s: and %d more", one.File, len(e)-most))
			break
		}
		lines = append(lines, one.Error())
	}
	return strings.Join(lines, "\n")
}

// document is a YAML file, with the errors found so far.
type document struct {
	name   string
	root   *yaml.Node // nil if the file cannot be parsed
	errors KeyErrors
	failed map[string]bool // the paths of errors
	lines  map[string]int  // of values that were decoded, by path
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(.*)$`)

// parse parses a file that has a single YAML document.
func parse(name string, data []byte, maxSize int) *document {
	d := &document{name: name, failed: map[string]bool{}, lines: map[string]int{}}
	root, err := readRoot(data, maxSize)
	if err == nil {
		d.root = root
		return d
	}
	texts := []string{err.Error()}
	if several := (*yaml.TypeError)(nil); errors.As(err, &several) {
		texts = several.Errors
	}
	for _, text := range texts {
		match := yamlLine.FindStringSubmatch(strings.ReplaceAll(text, "\n", " "))
		line, _ := strconv.Atoi(match[1])
		d.errors = append(d.errors, KeyError{File: d.name, Line: line, Text: match[2]})
	}
	return d
}

func readRoot(data []byte, maxSize int) (*yaml.Node, error) {
	if len(data) > maxSize {
		return nil, fmt.Errorf("larger than %d bytes", maxSize)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var first, second yaml.Node
	err := decoder.Decode(&first)
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the file is empty: it needs apiVersion: %s and kind", APIVersion)
	}
	if err == nil && !errors.Is(decoder.Decode(&second), io.EOF) {
		err = errors.New("more than one YAML document")
	}
	if err == nil {
		var content any // Keys must be unique, and aliases must not multiply the content.
		err = first.Decode(&content)
	}
	if err != nil {
		return nil, err
	}
	return first.Content[0], nil
}

// fail adds an error of the key at path, unless the key has one already.
func (d *document) fail(path, format string, args ...any) {
	if d.failed[path] {
		return
	}
	d.failed[path] = true
	d.errors = append(d.errors, KeyError{File: d.name, Line: d.line(path), Path: path, Text: fmt.Sprintf(format, args...)})
}

// clear removes the error of the key at path.
func (d *document) clear(path string) {
	delete(d.failed, path)
	d.errors = slices.DeleteFunc(d.errors, func(e KeyError) bool { return e.Path == path })
}

// check adds err, if there is one, as an error of the key at path, and reports whether
// there is none.
func (d *document) check(path string, err error) bool {
	if err != nil {
		d.fail(path, "%v", err)
	}
	return err == nil
}

// failedBelow reports whether a key at or below path has an error.
func (d *document) failedBelow(path string) bool {
	return slices.ContainsFunc(d.errors, func(e KeyError) bool { return strings.HasPrefix(e.Path, path) })
}

// err returns the errors, or nil.
func (d *document) err() error {
	if len(d.errors) == 0 {
		return nil
	}
	slices.SortStableFunc(d.errors, func(a, b KeyError) int { return cmp.Compare(a.Line, b.Line) })
	return d.errors
}

// line returns the line of the key at path, or of the nearest key that contains it; 0 is
// that of the whole file.
func (d *document) line(path string) int {
	for ; path != ""; path = path[:max(strings.LastIndexAny(path, ".["), 0)] {
		if line, ok := d.lines[path]; ok {
			return line
		}
	}
	return 0
}

// resolve returns what an alias stands for, or else node.
func resolve(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

// entry is a key of a mapping, with its value.
type entry struct {
	key   string
	value *yaml.Node
}

// entries returns the entries of a mapping in their order, with those of another that it
// merges (<<).
func entries(mapping *yaml.Node) (list []entry) {
	var values map[string]yaml.Node
	_ = mapping.Decode(&values) // What is no mapping has none; parse has decoded the others.
	for key, value := range values {
		list = append(list, entry{key, &value})
	}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if key := resolve(mapping.Content[i]); key.ShortTag() == "!!null" { // Decode ignores it.
			list = append(list, entry{key.Value, mapping.Content[i+1]})
		}
	}
	slices.SortFunc(list, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.value.Line, b.value.Line), cmp.Compare(a.value.Column, b.value.Column))
	})
	return list
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
