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

// set sets a key of a table to the TOML value raw.
func (e *editor) set(table []string, name, raw string) error {
	d := e.doc
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

// keyIndent returns the indentation of a new key in section i: that of its other keys,
// or the usual one of the text.
func (d *document) keyIndent(i int) string {
	for j := len(d.entries) - 1; j >= 0; j-- {
		if d.entries[j].section == i && !d.entries[j].inline {
			return d.indent(d.entries[j].key)
		}
	}
	if i == 0 {
		return ""
	}
	header := d.indent(d.sections[i].header.start)
	for _, e := range d.entries {
		if e.section > 0 && !e.inline && d.indent(e.key) == d.indent(d.sections[e.section].header.start) {
			return header
		}
	}
	return header + "  "
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

// addHeader adds the header of a table near related tables.
func (e *editor) addHeader(table []string) error {
	d := e.doc
	at, indent := len(d.text), ""
	for n := len(table) - 1; n > 0; n-- {
		i := lastIndex(d.sections, func(s section) bool { return len(s.path) > 0 && hasPrefix(s.path, table[:n]) })
		if i < 0 {
			continue
		}
		near := d.sections[i]
		at, indent = near.end, d.indent(near.header.start)
		if len(near.path) < len(table) && indent != "" {
			indent += "  "
		}
		for _, s := range d.sections {
			if len(s.path) == len(table) && hasPrefix(s.path, table[:n]) && n == len(table)-1 {
				indent = d.indent(s.header.start)
			}
		}
		break
	}
	text := d.asLine(at, indent+"["+dotted(table)+"]")
	before := d.text[:at]
	if before != "" && !strings.HasSuffix(before, "\n\n") && !strings.HasSuffix(before, "\n\r\n") {
		text = d.eol + text
	}
	return e.record(Edit{Op: opHeader, Path: table, Text: text}, span{at, at}, text)
}

func lastIndex[T any](list []T, match func(T) bool) int {
	for i := len(list) - 1; i >= 0; i-- {
		if match(list[i]) {
			return i
		}
	}
	return -1
}

// include adds missing items to the list at a table's key. A new list starts with
// inherited.
func (e *editor) include(table []string, name string, inherited, items []string) error {
	path := slices.Concat(table, []string{name})
	list := e.doc.entry(path)
	if list == nil {
		var raws []string
		all := slices.Clone(inherited)
		for _, item := range items {
			if !slices.Contains(all, item) {
				all = append(all, item)
			}
		}
		for _, item := range all {
			raws = append(raws, quoted(item))
		}
		if err := e.set(table, name, "["+strings.Join(raws, ", ")+"]"); err != nil {
			return err
		}
		e.edits[len(e.edits)-1].Items = items
		return nil
	}
	for _, item := range items {
		list := e.doc.entry(path)
		if list.kind != unstable.Array || list.mixed {
			return fmt.Errorf("line %d: %s should be a list of strings", e.doc.line(list.key), dotted(path))
		}
		if slices.ContainsFunc(list.strings, func(x element) bool { return x.text == item }) {
			continue
		}
		at, text := list.value.start+len("["), quoted(item)
		if n := len(list.strings); n > 0 {
			at, text = list.strings[n-1].span.end, ", "+text
		}
		if err := e.record(Edit{Op: opItem, Path: path, Text: text, Items: []string{item}}, span{at, at}, text); err != nil {
			return err
		}
	}
	return nil
}
