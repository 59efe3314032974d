// Package tomledit edits a TOML text, and preserves its comments, order, line endings and formatting.
// Edits can be undone after the text has changed otherwise.
package tomledit

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// bom is the UTF-8 byte order mark of some Windows editors.
const bom = "\xef\xbb\xbf"

// SyntaxError is an error of invalid TOML. Its text begins with the line and column.
type SyntaxError struct{ error }

// span is a half-open range of bytes.
type span struct{ start, end int }

// section is a `[table]` header and the text up to the next one. The first section of
// a document has no header.
type section struct {
	path   []string
	list   bool // an element of a list of tables: [[table]]
	header span // the header's line with its line ending
	end    int  // offset after the last key's line, where a line can be added
}

// keyValue is one `key = value`.
type keyValue struct {
	path    []string // from the document's root
	section int
	key     int // offset
	value   span
	line    span // whole lines, with line endings
}

// Document is a parsed TOML text. It is immutable; an edited text is parsed again.
type Document struct {
	Values map[string]any
	// HasBOM reports whether the text begins with a byte order mark.
	HasBOM bool

	text     string // without the byte order mark
	eol      string
	sections []section
	entries  []keyValue
}

// Parse parses a text. Its error is a [SyntaxError].
func Parse(text []byte) (*Document, error) {
	body, hasBOM := strings.CutPrefix(string(text), bom)
	d := &Document{text: body, HasBOM: hasBOM, eol: endOfLine(body), sections: []section{{}}}
	if err := toml.Unmarshal([]byte(body), &d.Values); err != nil {
		line, column := 1, 1
		if decode, ok := errors.AsType[*toml.DecodeError](err); ok {
			line, column = decode.Position()
		}
		return nil, SyntaxError{fmt.Errorf("%d:%d: %s", line, column, strings.TrimPrefix(err.Error(), "toml: "))}
	}
	var parser unstable.Parser
	parser.Reset([]byte(body))
	for parser.NextExpression() {
		node := parser.Expression()
		path, start, end := keyOf(node)
		switch node.Kind {
		case unstable.Table, unstable.ArrayTable:
			line := d.lines(span{start, end})
			d.sections = append(d.sections, section{path: path, list: node.Kind == unstable.ArrayTable, header: line, end: line.end})
		case unstable.KeyValue:
			d.addKeyValue(node, path, span{start, end})
		}
	}
	return d, nil // The parser has no error, because Unmarshal has parsed the text with the same one.
}

// addKeyValue records a key of the last section.
func (d *Document) addKeyValue(node *unstable.Node, path []string, key span) {
	whole := span{int(node.Raw.Offset), int(node.Raw.Offset + node.Raw.Length)}
	// Between the key and the value are an equals sign and white space.
	start := key.end + strings.IndexByte(d.text[key.end:], '=') + 1
	start += len(d.text[start:]) - len(strings.TrimLeft(d.text[start:], " \t"))
	current := len(d.sections) - 1
	e := keyValue{
		path: slices.Concat(d.sections[current].path, path), section: current, key: key.start,
		value: span{start, whole.end}, line: d.lines(span{key.start, whole.end}),
	}
	d.sections[current].end = e.line.end
	d.entries = append(d.entries, e)
}

func keyOf(node *unstable.Node) (path []string, start, end int) {
	parts := node.Key()
	for first := true; parts.Next(); first = false {
		part := parts.Node()
		path = append(path, string(part.Data))
		if first {
			start = int(part.Raw.Offset)
		}
		end = int(part.Raw.Offset + part.Raw.Length)
	}
	return path, start, end
}

// lines extends s to whole lines, with the last line ending.
func (d *Document) lines(s span) span {
	start := strings.LastIndexByte(d.text[:s.start], '\n') + 1
	end := len(d.text)
	if i := strings.IndexByte(d.text[s.end:], '\n'); i >= 0 {
		end = s.end + i + 1
	}
	return span{start, end}
}

func endOfLine(text string) string {
	if i := strings.IndexByte(text, '\n'); i > 0 && text[i-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}

// Bytes returns the text.
func (d *Document) Bytes() []byte { return d.withBOM(d.text) }

func (d *Document) withBOM(text string) []byte {
	if d.HasBOM {
		text = bom + text
	}
	return []byte(text)
}

// entry returns the key and value at path, or nil.
func (d *Document) entry(path []string) *keyValue {
	for i := range d.entries {
		if slices.Equal(d.entries[i].path, path) && !d.inList(path) {
			return &d.entries[i]
		}
	}
	return nil
}

// inList reports whether path leads through a list of tables.
func (d *Document) inList(path []string) bool {
	return slices.ContainsFunc(d.sections, func(s section) bool { return s.list && hasPrefix(path, s.path) })
}

// section returns the index of the section at path, or -1.
func (d *Document) section(path []string) int {
	return slices.IndexFunc(d.sections, func(s section) bool { return slices.Equal(s.path, path) && !s.list })
}

// line returns the line number of an offset, from 1.
func (d *Document) line(offset int) int { return strings.Count(d.text[:offset], "\n") + 1 }

func (d *Document) indent(offset int) string {
	line := d.text[strings.LastIndexByte(d.text[:offset], '\n')+1:]
	return line[:len(line)-len(strings.TrimLeft(line, " \t"))]
}

func hasPrefix(path, prefix []string) bool {
	return len(path) >= len(prefix) && slices.Equal(path[:len(prefix)], prefix)
}

// Lookup returns the value at path, or nil.
func Lookup(values map[string]any, path ...string) any {
	var value any = values
	for _, name := range path {
		table, _ := value.(map[string]any)
		value = table[name]
	}
	return value
}

// Get returns the value at path, or the zero value if there is none of this type.
func Get[T any](values map[string]any, path ...string) T {
	value, _ := Lookup(values, path...).(T)
	return value
}

// Strings returns the strings in the list at path.
func Strings(values map[string]any, path ...string) []string {
	var all []string
	for _, item := range Get[[]any](values, path...) {
		if s, ok := item.(string); ok {
			all = append(all, s)
		}
	}
	return all
}

// Key returns path as a TOML key.
func Key(path []string) string {
	keys := make([]string, len(path))
	for i, name := range path {
		if keys[i] = name; !bareKey.MatchString(name) {
			keys[i] = encode(name)
		}
	}
	return strings.Join(keys, ".")
}

var bareKey = regexp.MustCompile("^[A-Za-z0-9_-]+$")

// encode returns a value of a document as TOML, on one line.
func encode(value any) string {
	var b strings.Builder
	if err := toml.NewEncoder(&b).SetTablesInline(true).Encode(map[string]any{"v": value}); err != nil {
		return "" // The document is invalid with it, so that the edit is refused.
	}
	return strings.TrimSuffix(strings.TrimPrefix(b.String(), "v = "), "\n")
}
