// Package printer has the output formats of dxctl: tables, JSON, YAML and differences.
package printer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"go.yaml.in/yaml/v3"

	"github.com/directx-nri/directx-nri/internal/cli"
)

// Output formats that several commands have.
const (
	Table = "table"
	Wide  = "wide" // a table with more columns
	Text  = "text"
	JSON  = "json"
	YAML  = "yaml"
	Name  = "name" // a name on each line
)

// TableWriter writes aligned columns. Call Flush at the end.
type TableWriter struct{ *tabwriter.Writer }

// NewTable returns a table that is written to w.
func NewTable(w io.Writer) TableWriter {
	return TableWriter{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
}

// Row writes a row. An empty cell is shown as "-".
func (t TableWriter) Row(cells ...string) {
	for i, cell := range cells {
		cells[i] = cli.Printable(cell)
		if cell == "" {
			cells[i] = "-"
		}
	}
	fmt.Fprintln(t.Writer, strings.Join(cells, "\t"))
}

// Names writes each name on a line.
func Names(w io.Writer, names ...string) error {
	for _, name := range names {
		if _, err := fmt.Fprintln(w, cli.Printable(name)); err != nil {
			return err
		}
	}
	return nil
}

// Document writes v as JSON, or as YAML with the same fields.
func Document(w io.Writer, format string, v any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false) // Instance IDs have ampersands.
	if err := encoder.Encode(v); err != nil {
		return err
	}
	if format == YAML { // JSON is YAML in another style.
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
