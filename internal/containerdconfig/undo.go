package containerdconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// Undo reverts edits of text in reverse order. Later changes by others are kept, and
// notes describe the edits that could not be reverted because of them. Without such
// changes, the result is the original text byte for byte.
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
	if edit.Op == opHeader {
		return e.undoHeader(edit)
	}
	entry := e.doc.entry(edit.Path)
	if entry == nil {
		return "", nil // Removed by others.
	}
	if len(edit.Path) == 1 && edit.Path[0] == "version" && len(e.doc.values) > 1 {
		return "", nil // Later settings of others depend on it.
	}
	if edit.Op == opItem {
		return "", e.removeItems(edit)
	}
	if e.doc.text[entry.value.start:entry.value.end] != edit.New {
		if len(edit.Items) > 0 && entry.kind == unstable.Array && edit.Op != opValue {
			return "", e.removeItems(edit)
		}
		return fmt.Sprintf("line %d: %s was changed since it was configured, and is left as it is", e.doc.line(entry.key), dotted(edit.Path)), nil
	}
	switch edit.Op {
	case opValue:
		return "", e.replace(entry.value, edit.Old)
	case opKey:
		return "", e.replace(e.doc.whole(entry.line, edit.Text), "")
	case opInline:
		at := max(0, entry.key-(len(edit.Text)-len(strings.TrimLeft(edit.Text, ", "))))
		end := min(at+len(edit.Text), len(e.doc.text))
		if e.doc.text[at:end] == edit.Text {
			return "", e.replace(span{at, end}, "")
		}
		return fmt.Sprintf("line %d: the table around %s was changed since it was configured: remove the key by hand", e.doc.line(entry.key), dotted(edit.Path)), nil
	}
	return "", fmt.Errorf("edit of %s: unknown kind %q", dotted(edit.Path), edit.Op)
}

// whole returns the range of text around line, or line if the text there differs.
func (d *document) whole(line span, text string) span {
	body := strings.TrimLeft(text, "\r\n")
	start := line.start - (len(text) - len(body))
	end := start + len(text)
	switch {
	case start < 0 || end > len(d.text) || d.text[start:end] != text:
		return line
	case strings.HasSuffix(text, "\n") || end == len(d.text) || strings.HasPrefix(d.text[end:], d.eol):
		return span{start, end}
	}
	return line
}

func (e *editor) undoHeader(edit Edit) (string, error) {
	i := e.doc.section(edit.Path)
	if i < 0 {
		return "", nil
	}
	if e.doc.entriesOf(i) > 0 {
		return fmt.Sprintf("line %d: the table %s has further keys now, and is left", e.doc.line(e.doc.sections[i].header.start), dotted(edit.Path)), nil
	}
	return "", e.replace(e.doc.whole(e.doc.sections[i].header, edit.Text), "")
}

// removeItems removes strings from a list, each with one comma.
func (e *editor) removeItems(edit Edit) error {
	for _, item := range edit.Items {
		list := e.doc.entry(edit.Path)
		i := slices.IndexFunc(list.strings, func(x element) bool { return x.text == item })
		if i < 0 {
			continue
		}
		if err := e.replace(e.doc.itemSpan(list, i), ""); err != nil {
			return err
		}
	}
	return nil
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
