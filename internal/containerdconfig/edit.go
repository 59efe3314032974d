package containerdconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// The kinds of edit.
const (
	opValue  = "value"  // a key's value was replaced
	opKey    = "key"    // a line with a key was added
	opInline = "inline" // a key was added to an inline table
	opHeader = "header" // a table's header was added
	opItem   = "item"   // a string was added to a list
)

// Edit is a change that can be reverted even if other parts of the text have changed
// since.
type Edit struct {
	Op string `json:"op"`
	// Path is the key, or for a header the table.
	Path []string `json:"path"`
	// Old and New are the values as written in the text.
	Old string `json:"old,omitempty"`
	New string `json:"new,omitempty"`
	// Text is the inserted text, with line endings and commas.
	Text string `json:"text,omitempty"`
	// Items are our strings in a list.
	Items []string `json:"items,omitempty"`
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
	d, raw := e.doc, encode(value)
	path := slices.Concat(table, []string{name})
	if d.inList(table) {
		return fmt.Errorf("%s is a list of tables and should be a table", dotted(table))
	}
	if entry := d.entry(path); entry != nil {
		if old := d.text[entry.value.start:entry.value.end]; old != raw {
			return e.record(Edit{Op: opValue, Path: path, Old: old, New: raw}, entry.value, raw)
		}
		return nil
	}
	if i := d.section(table); i >= 0 {
		return e.addLine(i, d.sections[i].end, d.keyIndent(i), path, raw)
	}
	// Inline tables and tables of dotted keys must be extended in place; others get a
	// header.
	for n := len(table); n > 0; n-- {
		if entry := d.entry(table[:n]); entry != nil {
			if entry.kind != unstable.InlineTable {
				return fmt.Errorf("line %d: %s should be a table", d.line(entry.key), dotted(table[:n]))
			}
			return e.addInline(entry, path, raw)
		}
		if entry := d.lastBelow(table[:n]); entry != nil {
			if entry.inline {
				return e.addInline(d.entry(entry.base), path, raw)
			}
			return e.addLine(entry.section, entry.line.end, d.indent(entry.key), path, raw)
		}
		if slices.ContainsFunc(d.sections, func(s section) bool { return hasPrefix(s.path, table[:n]) }) {
			break
		}
	}
	if len(table) > 0 {
		if err := e.addHeader(table); err != nil {
			return err
		}
	}
	i := e.doc.section(table)
	return e.addLine(i, e.doc.sections[i].end, e.doc.keyIndent(i), path, raw)
}

// lastBelow returns the last dotted key that defines path as a table.
func (d *document) lastBelow(path []string) *entry {
	for i := len(d.entries) - 1; i >= 0; i-- {
		e := &d.entries[i]
		if len(e.path) > len(path) && hasPrefix(e.path, path) && len(e.base) < len(path) {
			return e
		}
	}
	return nil
}

// keyIndent returns the indentation of a new key in section i.
func (d *document) keyIndent(i int) string {
	for _, e := range slices.Backward(d.entries) {
		if e.section == i && !e.inline {
			return d.indent(e.key)
		}
	}
	if i == 0 {
		return ""
	}
	return d.indent(d.sections[i].header.start) + "  "
}

// addLine adds a key to section i at offset at, the end of a line.
func (e *editor) addLine(i, at int, indent string, path []string, raw string) error {
	line := indent + dotted(path[len(e.doc.sections[i].path):]) + " = " + raw
	line = e.doc.asLine(at, line)
	return e.record(Edit{Op: opKey, Path: path, New: raw, Text: line}, span{at, at}, line)
}

// asLine returns line with a line ending, which comes first if the line before at has
// none.
func (d *document) asLine(at int, line string) string {
	if at > 0 && d.text[at-1] != '\n' {
		return d.eol + line
	}
	return line + d.eol
}

// addInline adds a key to an inline table.
func (e *editor) addInline(table *entry, path []string, raw string) error {
	text := dotted(path[len(table.path):]) + " = " + raw
	last := -1
	for _, other := range e.doc.entries {
		if other.inline && slices.Equal(other.base, table.path) {
			last = max(last, other.value.end)
		}
	}
	if last < 0 {
		last = table.value.start + len("{")
		text = " " + text + " "
	} else {
		text = ", " + text
	}
	return e.record(Edit{Op: opInline, Path: path, New: raw, Text: text}, span{last, last}, text)
}

// addHeader adds the header of a table at the end.
func (e *editor) addHeader(table []string) error {
	d := e.doc
	text := d.asLine(len(d.text), "["+dotted(table)+"]")
	if d.text != "" && !strings.HasSuffix(d.text, d.eol+d.eol) {
		text = d.eol + text
	}
	return e.record(Edit{Op: opHeader, Path: table, Text: text}, span{len(d.text), len(d.text)}, text)
}

// includePattern adds our pattern to the list at a table's key. A new list starts
// with inherited.
func (e *editor) includePattern(table []string, name string, inherited []string) error {
	path := slices.Concat(table, []string{name})
	list, items := e.doc.entry(path), []string{AnnotationPattern}
	switch {
	case list == nil:
		if err := e.set(table, name, slices.Concat(inherited, items)); err != nil {
			return err
		}
		e.edits[len(e.edits)-1].Items = items
		return nil
	case list.kind != unstable.Array || list.mixed:
		return fmt.Errorf("line %d: %s should be a list of strings", e.doc.line(list.key), dotted(path))
	case slices.ContainsFunc(list.strings, func(x element) bool { return x.text == AnnotationPattern }):
		return nil
	}
	at, text := list.value.start+len("["), encode(AnnotationPattern)
	if n := len(list.strings); n > 0 {
		at, text = list.strings[n-1].span.end, ", "+text
	}
	return e.record(Edit{Op: opItem, Path: path, Text: text, Items: items}, span{at, at}, text)
}
