package tomledit

import (
	"slices"
	"strings"
)

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
	text, content := e.text, strings.Trim(inserted, "\r\n")
	added := span{start: line.start - strings.Index(inserted, content)}
	added.end = added.start + len(inserted)
	isUnchanged := strings.TrimRight(text[line.start:line.end], "\r\n") == content &&
		added.start >= 0 && added.end <= len(text) && text[added.start:added.end] == inserted
	if isUnchanged {
		line = added
	}
	e.replace(line, "")
}
