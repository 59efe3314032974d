package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/directx-nri/directx-nri/internal/errlog"
)

// Output formats that several commands have.
const (
	Table = "table"
	Wide  = "wide" // a table with more columns
	JSON  = "json"
	YAML  = "yaml"
)

// Output is how a command prints its result.
type Output struct {
	Format    string
	NoHeaders bool // of a table
}

// AddOutputFlags adds the flag that chooses one of formats, and one for tables if there are any. The default is the
// first format.
func AddOutputFlags(command *cobra.Command, output *Output, formats ...string) {
	AddChoice(command, &output.Format, "output", "o", "output format", formats...)
	if slices.Contains(formats, Table) {
		command.Flags().BoolVar(&output.NoHeaders, "no-headers", false, "print a table without the titles of its columns")
	}
}

// List defines how a list of items is printed.
type List[T any] struct {
	// Header has the titles of a table's columns, and Wide the titles of the additional columns of a
	// wide table. Cells returns an item's cells in all columns.
	Header, Wide []string
	Cells        func(T) []string
}

// Print writes items as output says. For an empty list, it writes no table.
func (l List[T]) Print(w io.Writer, output Output, items []T) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	header := l.Header
	switch {
	case output.Format == JSON || output.Format == YAML:
		return PrintDocument(w, output.Format, items)
	case len(items) == 0:
		return nil
	case output.Format == Wide:
		header = slices.Concat(l.Header, l.Wide)
	}
	if !output.NoHeaders {
		writeRow(table, header...)
	}
	for _, item := range items {
		writeRow(table, l.Cells(item)[:len(header)]...)
	}
	return table.Flush()
}

// writeRow writes the cells of a row. An empty cell is shown as "-".
func writeRow(table *tabwriter.Writer, cells ...string) {
	for i, cell := range cells {
		cells[i] = cmp.Or(errlog.OneLine(cell), "-")
	}
	fmt.Fprintln(table, strings.Join(cells, "\t"))
}

// PrintDocument writes v as JSON, or as YAML with the same fields.
func PrintDocument(w io.Writer, format string, v any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false) // Instance IDs have ampersands.
	if err := encoder.Encode(v); err != nil {
		return err
	}
	if format != YAML {
		_, err := w.Write(text.Bytes())
		return err
	}
	document, err := yaml.JSONToYAML(text.Bytes())
	if err != nil {
		return err
	}
	_, err = w.Write(document)
	return err
}
