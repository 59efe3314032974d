package containerdconfig

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Edit is a change that can be reverted even after other parts of the text have changed.
type Edit struct {
	// Path is the key, or the table whose header was added.
	Path []string `json:"path"`
	// Old and New are the values as written in the text. Old is "" for a key that was
	// added. Both are "" for a header.
	Old string `json:"old,omitempty"`
	New string `json:"new,omitempty"`
	// Inserted is the whole text that was inserted for an added key or header: its line with
	// the line endings before and after it.
	Inserted string `json:"inserted,omitempty"`
}

// tomlEditor edits a document and records its edits.
type tomlEditor struct {
	doc   *tomlDocument
	edits []Edit
	notes []string // about edits that could not be undone
	err   error    // the first one, after which nothing is edited
}

func newTOMLEditor(text []byte) (*tomlEditor, error) {
	d, err := parse(text)
	if err != nil {
		return nil, err
	}
	return &tomlEditor{doc: d}, nil
}

func (e *tomlEditor) fail(format string, args ...any) {
	e.err = cmp.Or(e.err, fmt.Errorf(format, args...))
}

func (e *tomlEditor) note(format string, args ...any) {
	e.notes = append(e.notes, fmt.Sprintf(format, args...))
}

// replace replaces s with text.
func (e *tomlEditor) replace(s span, text string) {
	if e.err != nil {
		return
	}
	d, err := parse(e.doc.bytes(e.doc.text[:s.start] + text + e.doc.text[s.end:]))
	if err != nil {
		e.fail("the change in line %d would make the file invalid (%w): edit it manually", e.doc.line(s.start), err)
		return
	}
	e.doc = d
}

// insert inserts the line of a new key or header.
func (e *tomlEditor) insert(edit Edit, at int, text string) {
	edit.Inserted = text
	e.replace(span{at, at}, text)
	e.edits = append(e.edits, edit)
}

// set sets a key of a table.
func (e *tomlEditor) set(table []string, name string, value any) {
	path, raw := slices.Concat(table, []string{name}), tomlValue(value)
	if e.doc.inList(table) {
		e.fail("%s is a list of tables and should be a table", tomlKey(table))
	}
	if entry := e.doc.entry(path); entry != nil {
		e.change(entry, raw)
		return
	}
	if e.doc.section(table) < 0 {
		e.addHeader(table)
	}
	i := e.doc.section(table)
	if e.err != nil {
		return // The header may not have been added.
	}
	at := e.doc.sections[i].end
	line := e.doc.withLineEnding(at, e.doc.keyIndent(i)+tomlKey([]string{name})+" = "+raw)
	e.insert(Edit{Path: path, New: raw}, at, line)
}

// change changes the value of a key.
func (e *tomlEditor) change(entry *keyValue, raw string) {
	if old := e.doc.raw(entry); old != raw {
		e.replace(entry.value, raw)
		e.edits = append(e.edits, Edit{Path: entry.path, Old: old, New: raw})
	}
}

// raw returns an entry's value as written.
func (d *tomlDocument) raw(e *keyValue) string { return d.text[e.value.start:e.value.end] }

// keyIndent returns the indentation for a new key in section i.
func (d *tomlDocument) keyIndent(i int) string {
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

// withLineEnding returns line with a line ending. The line ending comes first if the line before
// at has none.
func (d *tomlDocument) withLineEnding(at int, line string) string {
	if at > 0 && d.text[at-1] != '\n' {
		return d.eol + line
	}
	return line + d.eol
}

// addHeader adds the header of a table at the end of the document.
func (e *tomlEditor) addHeader(table []string) {
	d := e.doc
	for _, entry := range d.entries {
		// TOML does not allow a header that extends an inline table or a table of dotted keys.
		if part := entry.path[:len(d.sections[entry.section].path)+1]; hasPrefix(table, part) {
			e.fail("line %d: %s is not written as a table: write it as [%s]", d.line(entry.key), tomlKey(part), tomlKey(table))
		}
	}
	text := d.withLineEnding(len(d.text), "["+tomlKey(table)+"]")
	if d.text != "" && !strings.HasSuffix(d.text, d.eol+d.eol) {
		text = d.eol + text
	}
	e.insert(Edit{Path: table}, len(d.text), text)
}

// addPattern adds [AnnotationPattern] to the list at a table's key, as its first item, so that
// comments in the list keep their places. A new list also has the inherited items.
func (e *tomlEditor) addPattern(table []string, name string, inherited []string) {
	path := slices.Concat(table, []string{name})
	list, items := e.doc.entry(path), get[[]any](e.doc.values, path...)
	switch {
	case list == nil:
		e.set(table, name, slices.Concat([]string{AnnotationPattern}, inherited))
		return
	case items == nil || len(items) != len(stringsOf(e.doc.values, path...)):
		e.fail("line %d: %s should be a list of strings", e.doc.line(list.key), tomlKey(path))
		return
	case e.hasPattern(path):
		return
	}
	rest := strings.TrimPrefix(e.doc.raw(list), "[")
	switch {
	case len(items) == 0:
	case strings.ContainsRune(" \t\r\n", rune(rest[0])):
		rest = "," + rest
	default:
		rest = ", " + rest
	}
	e.change(list, "["+tomlValue(AnnotationPattern)+rest)
}

// hasPattern reports whether the list at path has [AnnotationPattern].
func (e *tomlEditor) hasPattern(path []string) bool {
	return slices.Contains(stringsOf(e.doc.values, path...), AnnotationPattern)
}
