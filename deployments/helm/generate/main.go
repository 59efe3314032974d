// Command generate fills what of the chart follows from other files: the table of
// values in README.md, from the comments of values.yaml, and in values.schema.json
// what a configuration may have, from docs/config.schema.json. Its arguments are
// the chart's folder and that of the documentation.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "generate: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("the arguments are the chart's folder and that of the documentation")
	}
	chart, docs := args[0], args[1]
	values, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return err
	}
	rows, err := table(values)
	if err != nil {
		return err
	}
	if err := rewrite(filepath.Join(chart, "README.md"), func(page string) (string, error) { return fill(page, rows) }); err != nil {
		return err
	}
	configuration, err := os.ReadFile(filepath.Join(docs, "config.schema.json"))
	if err != nil {
		return err
	}
	return rewrite(filepath.Join(chart, "values.schema.json"), func(schema string) (string, error) { return splice(schema, configuration) })
}

func rewrite(path string, change func(string) (string, error)) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	changed, err := change(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(changed), 0o644)
}

// table returns a row for each value that has a comment, and refuses values.yaml
// when one has none.
func table(values []byte) (string, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(values, &document); err != nil {
		return "", fmt.Errorf("values.yaml: %w", err)
	}
	rows := &strings.Builder{}
	rows.WriteString("| value | default | |\n|---|---|---|\n")
	if err := addRows(rows, "", document.Content[0]); err != nil {
		return "", fmt.Errorf("values.yaml: %w", err)
	}
	return rows.String(), nil
}

func addRows(rows *strings.Builder, prefix string, mapping *yaml.Node) error {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		// A comment that an empty line follows is about what comes, and not the key's.
		paragraphs := strings.Split(key.HeadComment, "\n\n")
		comment := strings.Join(strings.Fields(strings.ReplaceAll(paragraphs[len(paragraphs)-1], "# ", "")), " ")
		name := prefix + key.Value
		if comment == "" {
			if value.Kind != yaml.MappingNode || len(value.Content) == 0 {
				return fmt.Errorf("line %d: %s has no comment", key.Line, name)
			}
			if err := addRows(rows, name+".", value); err != nil {
				return err
			}
			continue
		}
		text, err := inline(value)
		if err != nil {
			return err
		}
		fmt.Fprintf(rows, "| `%s` | `%s` | %s |\n", name, text, strings.ReplaceAll(comment, "|", `\|`))
	}
	return nil
}

// inline returns a value on one line.
func inline(value *yaml.Node) (string, error) {
	var flow func(*yaml.Node)
	flow = func(n *yaml.Node) {
		n.Style |= yaml.FlowStyle
		n.HeadComment, n.LineComment, n.FootComment = "", "", ""
		for _, child := range n.Content {
			flow(child)
		}
	}
	if value.Kind != yaml.ScalarNode {
		flow(value)
	}
	text, err := yaml.Marshal(value)
	return strings.Join(strings.Fields(string(text)), " "), err
}

// The lines between which the table stands.
const (
	begin = "<!-- values: made by `make generate` -->\n"
	end   = "<!-- end -->\n"
)

func fill(page, rows string) (string, error) {
	head, rest, ok := strings.Cut(page, begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", fmt.Errorf("there are no lines %q and %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return head + begin + rows + end + tail, nil
}

// last begins the last definition of the values' schema, which is made of the
// configuration's.
const last = `    "configuration": `

// splice puts the configuration's schema into that of the values. A chart writes
// apiVersion and kind where they are not said.
func splice(schema string, configuration []byte) (string, error) {
	head, _, ok := strings.Cut(schema, last)
	if !ok {
		return "", errors.New("the definition \"configuration\" is not there")
	}
	var parsed map[string]json.RawMessage
	if err := json.Unmarshal(configuration, &parsed); err != nil {
		return "", fmt.Errorf("config.schema.json: %w", err)
	}
	for _, key := range []string{"$id", "$schema", "required", "title"} {
		delete(parsed, key)
	}
	// Keys are in the order of their names, as in the source.
	compact, err := json.Marshal(parsed)
	if err != nil {
		return "", err
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, compact, "    ", "  "); err != nil {
		return "", err
	}
	return head + last + indented.String() + "\n  }\n}\n", nil
}
