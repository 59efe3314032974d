package tomledit

import (
	"fmt"
	"maps"
	"regexp"
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

// Editor edits a document and records its edits.
type Editor struct {
	*Document
	Edits []Edit
	// Notes describe what could not be removed or undone, in a line each.
	Notes []string
	// Err is the first error, after which nothing is edited.
	Err error
}

func (e *Editor) fail(format string, args ...any) {
	if e.Err == nil {
		e.Err = fmt.Errorf(format, args...)
	}
}

func (e *Editor) note(format string, args ...any) {
	e.Notes = append(e.Notes, fmt.Sprintf(format, args...))
}

func (e *Editor) replace(s span, text string) {
	if e.Err != nil {
		return
	}
	d, err := Parse(e.withBOM(e.text[:s.start] + text + e.text[s.end:]))
	if err != nil {
		e.fail("the change in line %d would make the file invalid (%w): edit it manually", e.line(s.start), err)
		return
	}
	e.Document = d
}

// insert inserts the line of a new key or header.
func (e *Editor) insert(edit Edit, at int, text string) {
	edit.Inserted = text
	e.replace(span{at, at}, text)
	e.Edits = append(e.Edits, edit)
}

// Set sets a key of a table.
func (e *Editor) Set(table []string, name string, value any) {
	path := slices.Concat(table, []string{name})
	raw := encode(value)
	if e.inList(table) {
		e.fail("%s is a list of tables and should be a table", Key(table))
	}
	if entry := e.entry(path); entry != nil {
		e.change(entry, raw)
		return
	}
	if e.section(table) < 0 {
		e.addHeader(table)
	}
	i := e.section(table)
	if e.Err != nil {
		return // The header may not have been added.
	}
	at := e.sections[i].end
	line := e.withLineEnding(at, e.keyIndent(i)+Key([]string{name})+" = "+raw)
	e.insert(Edit{Path: path, New: raw}, at, line)
}

func (e *Editor) change(entry *keyValue, raw string) {
	if old := e.raw(entry); old != raw {
		e.replace(entry.value, raw)
		e.Edits = append(e.Edits, Edit{Path: entry.path, Old: old, New: raw})
	}
}

// raw returns an entry's value as written.
func (d *Document) raw(e *keyValue) string { return d.text[e.value.start:e.value.end] }

func (d *Document) keyIndent(i int) string {
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
func (d *Document) withLineEnding(at int, line string) string {
	if at > 0 && d.text[at-1] != '\n' {
		return d.eol + line
	}
	return line + d.eol
}

// addHeader adds the header of a table at the end of the document.
func (e *Editor) addHeader(table []string) {
	d := e.Document
	for _, entry := range d.entries {
		// TOML does not allow a header that extends an inline table or a table of dotted keys.
		if part := entry.path[:len(d.sections[entry.section].path)+1]; hasPrefix(table, part) {
			e.fail("line %d: %s is not written as a table: write it as [%s]", d.line(entry.key), Key(part), Key(table))
		}
	}
	text := d.withLineEnding(len(d.text), "["+Key(table)+"]")
	if d.text != "" && !strings.HasSuffix(d.text, d.eol+d.eol) {
		text = d.eol + text
	}
	e.insert(Edit{Path: table}, len(d.text), text)
}

// SetTable sets the keys of a table.
func (e *Editor) SetTable(table []string, values map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		e.Set(table, name, values[name])
	}
}

// AddItem adds an item to the list of strings at a table's key, unless the list has it. The item is
// the first one, so that comments in the list keep their places. A new list also has the inherited
// items.
func (e *Editor) AddItem(table []string, name, item string, inherited []string) {
	path := slices.Concat(table, []string{name})
	list := e.entry(path)
	items := Get[[]any](e.Values, path...)
	switch {
	case list == nil:
		e.Set(table, name, slices.Concat([]string{item}, inherited))
		return
	case items == nil || len(items) != len(Strings(e.Values, path...)):
		e.fail("line %d: %s should be a list of strings", e.line(list.key), Key(path))
		return
	case slices.Contains(items, any(item)):
		return
	}
	rest := strings.TrimPrefix(e.raw(list), "[")
	switch {
	case len(items) == 0:
	case strings.ContainsRune(" \t\r\n", rune(rest[0])):
		rest = "," + rest
	default:
		rest = ", " + rest
	}
	e.change(list, "["+encode(item)+rest)
}

// Remove removes the key at path, if there is one.
func (e *Editor) Remove(path []string) {
	if entry := e.removable(path); entry != nil {
		e.replace(entry.line, "")
	}
}

// RemoveItem removes an item and one comma from the list at path, which has it.
func (e *Editor) RemoveItem(path []string, item string) {
	list := e.removable(path)
	if list == nil {
		return
	}
	before := e.Document
	raw := e.raw(list)
	pattern := strings.ReplaceAll(`,[ \t]*ITEM|ITEM(\s*,[ \t]*)?`, "ITEM", `["']`+regexp.QuoteMeta(item)+`["']`)
	if at := regexp.MustCompile(pattern).FindStringIndex(raw); at != nil {
		e.replace(list.value, raw[:at[0]]+raw[at[1]:])
	}
	if e.Err == nil && slices.Contains(Strings(e.Values, path...), item) { // It is in a comment, too, or is written with escape sequences.
		e.Document = before
		e.note("line %d: %s still has %s: remove it manually", e.line(list.key), Key(path), item)
	}
}

// removable returns the entry at path, or nil.
func (e *Editor) removable(path []string) *keyValue {
	entry := e.entry(path)
	if entry == nil && Lookup(e.Values, path...) != nil {
		e.fail("%s is part of an inline table: remove it manually", Key(path))
	}
	return entry
}

// Undo reverts edits in reverse order. If the text has no other changes, the result is the original
// text. Other changes are kept: a list that was changed otherwise loses the item that the edits added
// to lists. Edits that the text does not have are ignored.
func (e *Editor) Undo(edits []Edit, item string) {
	for _, edit := range slices.Backward(edits) {
		e.undo(edit, item)
	}
}

func (e *Editor) undo(edit Edit, item string) {
	items := Strings(e.Values, edit.Path...)
	entry := e.entry(edit.Path)
	switch {
	case entry == nil:
		e.undoHeader(edit)
	case len(edit.Path) == 1 && len(e.Values) > 1: // Other keys may depend on a key of the root, such as a version.
	case e.raw(entry) == edit.New && edit.Old != "":
		e.replace(entry.value, edit.Old)
	case e.raw(entry) == edit.New:
		e.removeLine(entry.line, edit.Inserted)
	case e.raw(entry) == edit.Old:
	case slices.Contains(items, item):
		e.RemoveItem(edit.Path, item)
	case len(items) > 0: // The list does not have the item.
	default:
		e.note("line %d: %s was changed since it was configured, and is left as it is", e.line(entry.key), Key(edit.Path))
	}
}

// undoHeader removes the header of a table, unless the table has keys.
func (e *Editor) undoHeader(edit Edit) {
	i := e.section(edit.Path)
	if i < 0 {
		return
	}
	header := e.sections[i].header
	if slices.ContainsFunc(e.entries, func(entry keyValue) bool { return entry.section == i }) {
		e.note("line %d: the table %s has further keys now, and is left", e.line(header.start), Key(edit.Path))
		return
	}
	e.removeLine(header, edit.Inserted)
}

// removeLine removes a line, and the line endings that were inserted with it if the line is
// unchanged.
func (e *Editor) removeLine(line span, inserted string) {
	content := strings.Trim(inserted, "\r\n")
	at := line.start - strings.Index(inserted, content)
	unchanged := strings.TrimRight(e.text[line.start:line.end], "\r\n") == content && at >= 0 && strings.HasPrefix(e.text[at:], inserted)
	if unchanged {
		line = span{at, at + len(inserted)}
	}
	e.replace(line, "")
}
