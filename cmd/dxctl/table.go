package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/directx-nri/directx-nri/internal/cli"

	"go.yaml.in/yaml/v3"
)

// Output formats.
const (
	outputTable = "table"
	outputText  = "text" // for people
	outputWide  = "wide"
	outputYAML  = "yaml"
	outputJSON  = "json"
	outputName  = "name"
)

// none is the cell of a value that does not exist.
const none = "-"

// table writes aligned columns.
type table struct{ *tabwriter.Writer }

func newTable(w io.Writer) table { return table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

func (t table) row(cells ...string) {
	for i, cell := range cells {
		cells[i] = cli.Printable(cell)
		if cell == "" {
			cells[i] = none
		}
	}
	fmt.Fprintln(t.Writer, strings.Join(cells, "\t"))
}

// printAs writes v as JSON, or as YAML with the same fields.
func printAs(w io.Writer, output string, v any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false) // Instance IDs have ampersands.
	if err := encoder.Encode(v); err != nil {
		return err
	}
	if output == outputYAML { // Which JSON is, in another style.
		var document yaml.Node
		if err := yaml.Unmarshal(text.Bytes(), &document); err != nil {
			return err
		}
		useBlocks(&document)
		text.Reset()
		encoder := yaml.NewEncoder(&text)
		encoder.SetIndent(2)
		if err := encoder.Encode(&document); err != nil {
			return err
		}
	}
	_, err := w.Write(text.Bytes())
	return err
}

func useBlocks(node *yaml.Node) {
	node.Style = 0
	for _, below := range node.Content {
		useBlocks(below)
	}
}

// either returns values as text: a, b or c.
func either(values []string) string {
	last := len(values) - 1
	if last < 1 {
		return strings.Join(values, "")
	}
	return strings.Join(values[:last], ", ") + " or " + values[last]
}

// checkChoice returns an error unless value is one of choices.
func checkChoice(flag, value string, choices ...string) error {
	if slices.Contains(choices, value) {
		return nil
	}
	return cli.Usage("--%s %q: want %s", flag, value, either(choices))
}
