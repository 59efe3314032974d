package containerdconfig

import (
	"fmt"
	"slices"
	"strings"
)

// Undo reverts edits of text in reverse order. Later changes by others are kept, and
// notes describe the edits that could not be reverted because of them. Only empty lines at
// the end can differ from the original text otherwise.
func Undo(text []byte, edits []Edit) (result []byte, notes []string, err error) {
	e, err := newEditor(text)
	if err != nil {
		return nil, nil, err
	}
	for _, edit := range slices.Backward(edits) {
		note, err := e.undo(edit)
		if err != nil {
			return nil, nil, err
		}
		if note != "" {
			notes = append(notes, note)
		}
	}
	return e.doc.bytes(e.doc.text), notes, nil
}

func (e *editor) undo(edit Edit) (note string, err error) {
	entry := e.doc.entry(edit.Path)
	switch {
	case entry == nil:
		return e.undoHeader(edit.Path)
	case len(edit.Path) == 1 && len(e.doc.values) > 1:
		return "", nil // Later settings of others depend on the version.
	case e.doc.raw(entry) == edit.New && edit.Old != "":
		return "", e.replace(entry.value, edit.Old)
	case e.doc.raw(entry) == edit.New:
		return "", e.replace(entry.line, "")
	case entry.pattern() >= 0:
		return "", e.replace(e.doc.itemSpan(entry, entry.pattern()), "")
	case len(entry.strings) > 0 || edit.New == "":
		return "", nil // Our pattern was removed.
	}
	return fmt.Sprintf("line %d: %s was changed since it was configured, and is left as it is", e.doc.line(entry.key), dotted(edit.Path)), nil
}

// undoHeader removes the header of a table without keys.
func (e *editor) undoHeader(path []string) (note string, err error) {
	i := e.doc.section(path)
	if i < 0 {
		return "", nil // Removed by others.
	}
	header := e.doc.sections[i].header
	if slices.ContainsFunc(e.doc.entries, func(entry entry) bool { return entry.section == i }) {
		return fmt.Sprintf("line %d: the table %s has further keys now, and is left", e.doc.line(header.start), dotted(path)), nil
	}
	if strings.HasSuffix(e.doc.text[:header.start], e.doc.eol+e.doc.eol) {
		header.start -= len(e.doc.eol)
	}
	return "", e.replace(header, "")
}

// itemSpan returns the range of string i of a list and the comma before it, or after
// it for the first.
func (d *document) itemSpan(list *entry, i int) span {
	s := list.strings[i].span
	if i > 0 {
		// Comments between the strings are preserved.
		gap := d.text[list.strings[i-1].span.end:s.start]
		if strings.Trim(gap, " \t") == "," {
			return span{list.strings[i-1].span.end, s.end}
		}
	}
	rest := d.text[s.end:list.value.end]
	trimmed := strings.TrimLeft(rest, " \t\r\n")
	if !strings.HasPrefix(trimmed, ",") {
		return s
	}
	after := trimmed[1:]
	if i+1 < len(list.strings) {
		after = strings.TrimLeft(after, " \t")
	}
	return span{s.start, s.end + len(rest) - len(after)}
}
