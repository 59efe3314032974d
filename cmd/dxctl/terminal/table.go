package terminal

import (
	"cmp"
	"io"
	"slices"
	"strings"

	"github.com/clipperhouse/displaywidth"
)

// Column is a column of a [Table].
type Column struct {
	Title string
	// Right has the column's text end at its right edge, as numbers do.
	Right bool
	// Give says when the column gives way where the table is too wide: 1 first. A
	// column with 0 never does.
	Give int
	// Least is the number of columns of the terminal that it keeps then; with 0
	// it goes altogether.
	Least int
}

// Cell is a text of a [Table].
type Cell struct {
	Text  string
	Style Style
}

// Table is text in columns.
type Table struct {
	Columns []Column
	rows    [][]Cell
}

// Add adds a row, a cell for each column.
func (t *Table) Add(cells ...Cell) {
	row := make([]Cell, len(t.Columns))
	for i := range min(len(cells), len(row)) {
		row[i] = Cell{Printable(cells[i].Text), cells[i].Style}
	}
	t.rows = append(t.rows, row)
}

// gap parts two columns.
const gap = "  "

// cut stands for what is left out of a text.
const cut = "…"

// Print writes the table to w, which is what to says. No line is longer than the terminal is
// wide: what is longer is cut, and never wrapped. A file and a pipe have each
// text in full.
func (t *Table) Print(w io.Writer, to Terminal) error {
	widths := t.fit(to.Width)
	titles := make([]Cell, len(t.Columns))
	for i, column := range t.Columns {
		titles[i] = Cell{column.Title, Bold}
	}
	var text strings.Builder
	for _, row := range append([][]Cell{titles}, t.rows...) {
		text.WriteString(t.line(row, widths, to))
		text.WriteByte('\n')
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// gone is the width of a column that is left out.
const gone = -1

// fit returns the width of each column, so that a line has at most limit where
// that is possible. 0 is no limit.
func (t *Table) fit(limit int) []int {
	widths := make([]int, len(t.Columns))
	for i, column := range t.Columns {
		widths[i] = displaywidth.String(column.Title)
		for _, row := range t.rows {
			widths[i] = max(widths[i], displaywidth.String(row[i].Text))
		}
	}
	if limit <= 0 {
		return widths
	}
	order := make([]int, len(t.Columns))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(t.Columns[a].Give, t.Columns[b].Give) })
	full := slices.Clone(widths)
	for _, i := range order {
		over := total(widths) - limit
		column := t.Columns[i]
		switch {
		case over <= 0 || column.Give == 0:
		case column.Least == 0:
			widths[i] = gone
		default:
			widths[i] = max(widths[i]-over, min(widths[i], column.Least))
		}
	}
	// A column that went may have left more room than was needed.
	for _, i := range slices.Backward(order) {
		if room := limit - total(widths); room > 0 && widths[i] != gone {
			widths[i] = min(widths[i]+room, full[i])
		}
	}
	return widths
}

// total returns how long a line is.
func total(widths []int) int {
	sum := 0
	for _, width := range widths {
		if width != gone {
			sum += width + len(gap)
		}
	}
	return max(0, sum-len(gap))
}

// line returns a row as a line without trailing space.
func (t *Table) line(row []Cell, widths []int, to Terminal) string {
	var line strings.Builder
	begin, end := 0, 0 // where the column begins, and where the line ends so far
	for i, cell := range row {
		width := widths[i]
		if width == gone {
			continue
		}
		place := begin
		begin += width + len(gap)
		if to.Width > 0 {
			width = min(width, to.Width-place)
		}
		if width <= 0 || cell.Text == "" {
			continue
		}
		text := displaywidth.TruncateString(cell.Text, width, cut)
		wide := displaywidth.String(text)
		if t.Columns[i].Right {
			place += width - wide
		}
		line.WriteString(strings.Repeat(" ", place-end))
		line.WriteString(to.Paint(cell.Style, text))
		end = place + wide
	}
	return line.String()
}
