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

	"github.com/directx-nri/directx-nri/internal/errlog"
)

// keyError is one error in a YAML file.
type keyError struct {
	File string
	Line int // 0 if unknown
	// Path is the key, for example resources[0].replicas, "" for the whole file.
	Path string
	Text string
}

// Error returns file:line: path: text.
func (e keyError) Error() string {
	place := e.File
	if e.Line > 0 {
		place += ":" + strconv.Itoa(e.Line)
	}
	if e.Path != "" {
		place += ": " + e.Path
	}
	return place + ": " + e.Text
}

// KeyErrors are the errors in a file, in the order of their lines. There is at least one.
type KeyErrors []keyError

// Error returns a line for each error, 50 at most.
func (e KeyErrors) Error() string {
	const maxLines = 50
	var lines []string
	for _, keyError := range e[:min(len(e), maxLines)] {
		lines = append(lines, keyError.Error())
	}
	if len(e) > maxLines {
		lines = append(lines, fmt.Sprintf("%s: and %d more", e[0].File, len(e)-maxLines))
	}
	return strings.Join(lines, "\n")
}

// yamlDocument is the document in a YAML file, with the errors that were found so far.
type yamlDocument struct {
	name   string
	root   *yaml.Node
	flags  Flags // which take precedence over the values in root
	errors KeyErrors
	lines  map[string]int // of the decoded values, by path
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(.*)$`)

// parse parses a file that has a single YAML document. Its errors are [KeyErrors].
func parse(name string, data []byte, maxSize int) (*yamlDocument, error) {
	d := &yamlDocument{name: name, lines: map[string]int{}}
	var err error
	if d.root, err = readRoot(data, maxSize); err == nil {
		return d, nil
	}
	messages := []string{err.Error()}
	if typeErr, ok := errors.AsType[*yaml.TypeError](err); ok {
		messages = typeErr.Errors
	}
	for _, text := range messages {
		match := yamlLine.FindStringSubmatch(strings.ReplaceAll(text, "\n", " "))
		line, _ := strconv.Atoi(match[1])
		d.add(line, "", match[2])
	}
	return nil, d.err()
}

func readRoot(data []byte, maxSize int) (*yaml.Node, error) {
	if len(data) > maxSize {
		return nil, fmt.Errorf("larger than %d bytes", maxSize)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var first, second yaml.Node
	err := decoder.Decode(&first)
	switch {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("the file is empty: it needs apiVersion: %s and kind", APIVersion)
	case err != nil:
		return nil, err
	case !errors.Is(decoder.Decode(&second), io.EOF):
		return nil, errors.New("more than one YAML document")
	}
	var content any // Decode returns an error for duplicate keys, and for aliases that multiply the content.
	if err := first.Decode(&content); err != nil {
		return nil, err
	}
	return first.Content[0], nil
}

// add adds an error of the key at path.
func (d *yamlDocument) add(line int, path, text string) {
	d.errors = append(d.errors, keyError{File: d.name, Line: line, Path: path, Text: text})
}

// errorf adds an error of the key at path, with its line.
func (d *yamlDocument) errorf(path, format string, args ...any) {
	d.add(d.line(path), path, fmt.Sprintf(format, args...))
}

// check reports whether err is nil. If it is not, check adds it as an error of the key at path.
func (d *yamlDocument) check(path string, err error) bool {
	if err != nil {
		d.errorf(path, "%s", errlog.Text(err))
	}
	return err == nil
}

// hasErrors reports whether a key at or below path has an error.
func (d *yamlDocument) hasErrors(path string) bool {
	return slices.ContainsFunc(d.errors, func(e keyError) bool { return strings.HasPrefix(e.Path, path) })
}

// err returns the errors as [KeyErrors], nil if there are none.
func (d *yamlDocument) err() error {
	if len(d.errors) == 0 {
		return nil
	}
	slices.SortStableFunc(d.errors, func(a, b keyError) int { return cmp.Compare(a.Line, b.Line) })
	return d.errors
}

// line returns the line of the key at path, or of the nearest key that contains it, 0 if there is
// none.
func (d *yamlDocument) line(path string) int {
	for ; path != ""; path = path[:max(strings.LastIndexAny(path, ".["), 0)] {
		if line, ok := d.lines[path]; ok {
			return line
		}
	}
	return 0
}

// entries returns the values of a mapping by key, with the values of a mapping that it merges (<<).
func entries(mapping *yaml.Node) map[string]*yaml.Node {
	var merged map[string]yaml.Node
	_ = mapping.Decode(&merged) // It cannot fail, because parse has decoded the whole file.
	values := map[string]*yaml.Node{}
	for key, value := range merged {
		values[key] = &value
	}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if key := mapping.Content[i]; key.ShortTag() == "!!null" { // Decode ignores this key.
			values[key.Value] = mapping.Content[i+1]
		}
	}
	return values
}

// join returns the path of a key below path.
func join(path, key string) string { return strings.TrimPrefix(path+"."+key, ".") }
