package containerdconfig

import (
	"regexp"
	"slices"
	"strings"
)

// Undo reverts edits of text in reverse order. If the text has no other changes, the result is the
// original text. Other changes are kept, and notes describe the edits that cannot be reverted
// because of them. Edits that the text does not have are ignored.
func Undo(text []byte, edits []Edit) (result []byte, notes []string, err error) {
	e, err := newTOMLEditor(text)
	if err != nil {
		return nil, nil, err
	}
	for _, edit := range slices.Backward(edits) {
		e.undo(edit)
	}
	return e.doc.bytes(e.doc.text), e.notes, e.err
}

func (e *tomlEditor) undo(edit Edit) {
	entry := e.doc.entry(edit.Path)
	switch {
	case entry == nil:
		e.undoHeader(edit)
	case len(edit.Path) == 1 && len(e.doc.values) > 1: // Settings that others added depend on the version.
	case e.doc.raw(entry) == edit.New && edit.Old != "":
		e.replace(entry.value, edit.Old)
	case e.doc.raw(entry) == edit.New:
		e.removeLine(entry.line, edit.Inserted)
	case e.doc.raw(entry) == edit.Old:
	case e.hasPattern(edit.Path):
		e.removePattern(entry)
	case len(stringsOf(e.doc.values, edit.Path...)) > 0: // The list does not have the pattern.
	default:
		e.note("line %d: %s was changed since it was configured, and is left as it is", e.doc.line(entry.key), tomlKey(edit.Path))
	}
}

// undoHeader removes the header of a table, unless the table has keys.
func (e *tomlEditor) undoHeader(edit Edit) {
	i := e.doc.section(edit.Path)
	if i < 0 {
		return
	}
	header := e.doc.sections[i].header
	if slices.ContainsFunc(e.doc.entries, func(entry keyValue) bool { return entry.section == i }) {
		e.note("line %d: the table %s has further keys now, and is left", e.doc.line(header.start), tomlKey(edit.Path))
		return
	}
	e.removeLine(header, edit.Inserted)
}

// removeLine removes a line, and the line endings that were inserted with it if the line is
// unchanged.
func (e *tomlEditor) removeLine(line span, inserted string) {
	text, content := e.doc.text, strings.Trim(inserted, "\r\n")
	added := span{start: line.start - strings.Index(inserted, content)}
	added.end = added.start + len(inserted)
	isUnchanged := strings.TrimRight(text[line.start:line.end], "\r\n") == content &&
		added.start >= 0 && added.end <= len(text) && text[added.start:added.end] == inserted
	if isUnchanged {
		line = added
	}
	e.replace(line, "")
}

var patternItem = regexp.MustCompile(strings.ReplaceAll(`,[ \t]*ITEM|ITEM(\s*,[ \t]*)?`, "ITEM", `["']`+regexp.QuoteMeta(AnnotationPattern)+`["']`))

// removePattern removes [AnnotationPattern] and one comma from a list that has it.
func (e *tomlEditor) removePattern(list *keyValue) {
	before, raw := e.doc, e.doc.raw(list)
	if at := patternItem.FindStringIndex(raw); at != nil {
		e.replace(list.value, raw[:at[0]]+raw[at[1]:])
	}
	if e.err == nil && e.hasPattern(list.path) { // It is in a comment, too, or is written with escape sequences.
		e.doc = before
		e.note("line %d: %s still has %s: remove it manually", e.doc.line(list.key), tomlKey(list.path), AnnotationPattern)
	}
}
