package containerdconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// Edit is a change that can be reverted even if other parts of the text have changed
// since.
type Edit struct {
	// Path is the key, or the table whose header was added.
	Path []string `json:"path"`
	// Old and New are the values as written in the text. Old is "" for a key that was
	// added, and New for a header.
	Old string `json:"old,omitempty"`
	New string `json:"new,omitempty"`
}

// editor edits a document and records its edits.
type editor struct {
	doc   *document
	edits []Edit
}

func newEditor(text []byte) (*editor, error) {
	d, err := parse(text)
	if err != nil {
		return nil, err
	}
	return &editor{doc: d}, nil
}

// replace replaces s with text.
func (e *editor) replace(s span, text string) error {
	d, err := parse(e.doc.bytes(e.doc.text[:s.start] + text + e.doc.text[s.end:]))
	if err != nil {
		return fmt.Errorf("the change in line %d would make the file invalid (%w): edit it manually", e.doc.line(s.start), err)
	}
	e.doc = d
	return nil
}

func (e *editor) record(edit Edit, s span, text string) error {
	if err := e.replace(s, text); err != nil {
		return err
	}
	e.edits = append(e.edits, edit)
	return nil
}

// set sets a key of a table.
func (e *editor) set(table []string, name string, value any) error {
	path, raw := slices.Concat(table, []string{name}), encode(value)
	if e.doc.inList(table) {
		return fmt.Errorf("%s is a list of tables and should be a table", dotted(table))
	}
	if entry := e.doc.entry(path); entry != nil {
		return e.change(entry, raw)
	}
	i := e.doc.section(table)
	if i < 0 {
		if err := e.addHeader(table); err != nil {
			return err
		}
		i = e.doc.section(table)
	}
	at := e.doc.sections[i].end
	line := e.doc.asLine(at, e.doc.keyIndent(i)+dotted([]string{name})+" = "+raw)
	return e.record(Edit{Path: path, New: raw}, span{at, at}, line)
}

// change changes the value of a key.
func (e *editor) change(entry *entry, raw string) error {
	if old := e.doc.raw(entry); old != raw {
		return e.record(Edit{Path: entry.path, Old: old, New: raw}, entry.value, raw)
	}
	return nil
}

// raw returns an entry's value as written.
func (d *document) raw(e *entry) string { return d.text[e.value.start:e.value.end] }

// keyIndent returns the indentation of a new key in section i.
func (d *document) keyIndent(i int) string {
	for _, e := range slices.Backward(d.entries) {
		if e.section == i {
			return d.indent(e.key)
		}
	}
	if i == 0 {
		return ""
	}
	return d.indent(d.sections[i].header.start) + "  "
}

// asLine returns line with a line ending, which comes first if the line before at has
// none.
func (d *document) asLine(at int, line string) string {
	if at > 0 && d.text[at-1] != '\n' {
		return d.eol + line
	}
	return line + d.eol
}

// addHeader adds the header of a table at the end.
func (e *editor) addHeader(table []string) error {
	d := e.doc
	for _, entry := range d.entries {
		// Inline tables and tables of dotted keys cannot be extended by a header.
		if part := entry.path[:len(d.sections[entry.section].path)+1]; hasPrefix(table, part) {
			return fmt.Errorf("line %d: %s is not written as a table: write it as [%s]", d.line(entry.key), dotted(part), dotted(table))
		}
	}
	text := d.asLine(len(d.text), "["+dotted(table)+"]")
	if d.text != "" && !strings.HasSuffix(d.text, d.eol+d.eol) {
		text = d.eol + text
	}
	return e.record(Edit{Path: table}, span{len(d.text), len(d.text)}, text)
}

// includePattern adds our pattern to the list at a table's key, as its first item: comments in
// the list keep their places. A new list has also what is inherited.
func (e *editor) includePattern(table []string, name string, inherited []string) error {
	path := slices.Concat(table, []string{name})
	list := e.doc.entry(path)
	switch {
	case list == nil:
		return e.set(table, name, slices.Concat([]string{AnnotationPattern}, inherited))
	case list.kind != unstable.Array || list.mixed:
		return fmt.Errorf("line %d: %s should be a list of strings", e.doc.line(list.key), dotted(path))
	case list.hasPattern():
		return nil
	}
	items := strings.TrimPrefix(e.doc.raw(list), "[")
	switch {
	case len(list.strings) == 0:
	case strings.ContainsRune(" \t\r\n", rune(items[0])):
		items = "," + items
	default:
		items = ", " + items
	}
	return e.change(list, "["+encode(AnnotationPattern)+items)
}

// hasPattern reports whether a list has our pattern.
func (e *entry) hasPattern() bool { return slices.Contains(e.strings, AnnotationPattern) }
