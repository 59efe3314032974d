package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"go.yaml.in/yaml/v3"

	"directx-nri/cmd/dxctl/doctor"
)

// Output formats.
const (
	outputTable = "table"
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
		cells[i] = doctor.Printable(cell)
		if cell == "" {
			cells[i] = none
		}
	}
	fmt.Fprintln(t.Writer, strings.Join(cells, "\t"))
}

// printAs writes v as YAML or JSON.
func printAs(w io.Writer, output string, v any) error {
	if output == outputJSON {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false) // Instance IDs have ampersands.
		return encoder.Encode(v)
	}
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	if err := encoder.Encode(v); err != nil {
		return err
	}
	return encoder.Close()
}

// either returns values as text: a, b or c.
func either(values []string) string {
	last := len(values) - 1
	if last < 1 {
		return strings.Join(values, "")
	}
	return strings.Join(values[:last], ", ") + " or " + values[last]
}
