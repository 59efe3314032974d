package inventory

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// decoder collects the problems of one file.
type decoder struct {
	file     string
	problems Problems
	values   int // looked at so far, aliases counted each time
}

func (d *decoder) fail(line int, path, format string, args ...any) {
	d.problems = append(d.problems, Problem{File: d.file, Line: max(line, 1), Path: path, Text: fmt.Sprintf(format, args...)})
}

// document returns the root of the file's only document.
func (d *decoder) document(data []byte) (root value, ok bool) {
	if len(data) > maxFileSize {
		d.fail(1, "", "the file has %d bytes; at most %d are allowed", len(data), maxFileSize)
		return value{}, false
	}
	if line := firstForeignLine(data); line > 0 {
		d.fail(line, "", "there are bytes that are not UTF-8 text; save the file as UTF-8 (without NUL and other control characters)")
		return value{}, false
	}
	docs := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	switch err := decodeNext(docs, &doc); {
	case errors.Is(err, io.EOF), err == nil && isBlank(&doc):
		d.fail(1, "", "the file is empty; a node without devices is written with apiVersion, kind and \"devices: []\"")
		return value{}, false
	case err != nil:
		d.syntax(err, data)
		return value{}, false
	}
	switch err := decodeNext(docs, &next); {
	case err == nil:
		d.fail(next.Line, "", "there is a second YAML document; put all devices into one")
		return value{}, false
	case !errors.Is(err, io.EOF):
		d.syntax(err, data)
		return value{}, false
	}
	return d.value(doc.Content[0], ""), true
}

// decodeNext reads one document. The library reports what it does not expect
// of itself by panicking ("please report"), also where an input is to blame;
// whoever reads a file that others write wants an error.
func decodeNext(docs *yaml.Decoder, doc *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: %v", r)
		}
	}()
	return docs.Decode(doc)
}

func isBlank(doc *yaml.Node) bool {
	if doc.Kind != yaml.DocumentNode || len(doc.Content) == 0 {
		return true
	}
	root := doc.Content[0]
	return root.Kind == yaml.ScalarNode && root.Value == "" && root.Style == 0
}

// firstForeignLine returns the line of the first byte that is not text in
// UTF-8, 0 when there is none. The YAML library does not tell that line.
func firstForeignLine(data []byte) int {
	line := 1
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		switch {
		case r == '\n':
			line++
		case r == utf8.RuneError && n == 1, unicode.IsControl(r) && r != '\t' && r != '\r' && r != '\u0085':
			return line
		}
		i += n
	}
	return 0
}

// syntax reports an error of the YAML library, whose text may begin with a
// line: that where the broken list, mapping or scalar begins.
func (d *decoder) syntax(err error, data []byte) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 1
	if rest, found := strings.CutPrefix(text, "line "); found {
		if number, after, found := strings.Cut(rest, ": "); found {
			if n, err := strconv.Atoi(number); err == nil {
				line, text = n, after
			}
		}
	} else if rest, found := strings.CutPrefix(text, "unknown anchor '"); found {
		name, _, _ := strings.Cut(rest, "'")
		if at := bytes.Index(data, []byte("*"+name)); at >= 0 {
			line += bytes.Count(data[:at], []byte("\n"))
		}
	}
	d.fail(line, "", "the YAML that begins here cannot be read: %s; correct the line or one soon below it", text)
}

// value is one value of the file.
type value struct {
	d    *decoder
	node *yaml.Node // never an alias
	path string
}

func (d *decoder) value(node *yaml.Node, path string) value {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	return value{d: d, node: node, path: path}
}

func (v value) fail(format string, args ...any) { v.d.fail(v.node.Line, v.path, format, args...) }

// spend counts n values and tells whether that many are still allowed.
func (v value) spend(n int) bool {
	before := v.d.values
	v.d.values += n
	if v.d.values <= maxValues {
		return true
	}
	if before <= maxValues {
		v.fail("the file has more than %d values, aliases counted each time; remove some", maxValues)
	}
	return false
}

// object is a mapping whose keys are known.
type object struct {
	value
	fields map[string]value
}

// object reads v as a mapping with no other keys than these. ok is false when
// it is no mapping; single bad keys are reported and left out.
func (v value) object(keys ...string) (o object, ok bool) {
	if v.node.Kind != yaml.MappingNode || v.node.Tag != "!!map" {
		v.fail("must be a mapping with %s, not %s", list(keys), v.describe())
		return object{}, false
	}
	if !v.spend(len(v.node.Content) / 2) {
		return object{}, false
	}
	o = object{value: v, fields: make(map[string]value, len(keys))}
	firstLine := make(map[string]int, len(keys))
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		key := v.node.Content[i]
		path := key.Value
		if v.path != "" {
			path = v.path + "." + path
		}
		switch {
		case key.Kind != yaml.ScalarNode:
			v.d.fail(key.Line, v.path, "a key is not a plain name; allowed are %s", list(keys))
		case key.Tag == "!!merge":
			v.d.fail(key.Line, v.path, "merge keys (<<) are not allowed; give each value an anchor and an alias of its own, or write it out")
		case key.Tag != "!!str" || !slices.Contains(keys, key.Value):
			v.d.fail(key.Line, v.path, "the key %s is not known; %s", quote(key.Value), suggest(key.Value, keys))
		case firstLine[key.Value] > 0:
			v.d.fail(key.Line, path, "is there twice, first in line %d; remove one", firstLine[key.Value])
		default:
			firstLine[key.Value] = key.Line
			o.fields[key.Value] = v.d.value(v.node.Content[i+1], path)
		}
	}
	return o, true
}

// get returns the value of a key, and whether it is there.
func (o object) get(key string) (value, bool) {
	v, ok := o.fields[key]
	return v, ok
}

// require returns the value of a key and reports its absence.
func (o object) require(key, hint string) (value, bool) {
	v, ok := o.fields[key]
	if !ok {
		o.fail("%s is missing; %s", key, hint)
	}
	return v, ok
}

// items reads v as a list of at most limit values.
func (v value) items(limit int) ([]value, bool) {
	switch {
	case v.node.Kind != yaml.SequenceNode || v.node.Tag != "!!seq":
		v.fail("must be a list, not %s; an empty one is written []", v.describe())
		return nil, false
	case len(v.node.Content) > limit:
		v.fail("has %d entries; at most %d are allowed", len(v.node.Content), limit)
		return nil, false
	case !v.spend(len(v.node.Content)):
		return nil, false
	}
	items := make([]value, len(v.node.Content))
	for i, node := range v.node.Content {
		items[i] = v.d.value(node, v.path+"["+strconv.Itoa(i)+"]")
	}
	return items, true
}

func (v value) isString() bool { return v.node.Kind == yaml.ScalarNode && v.node.Tag == "!!str" }

// str reads v as a string of one line. A number or a boolean is not a string
// unless it is quoted.
func (v value) str() (string, bool) {
	if !v.isString() {
		v.fail("must be a string, not %s; quote it if it is one", v.describe())
		return "", false
	}
	if strings.ContainsFunc(v.node.Value, unicode.IsControl) {
		v.fail("%s has a line break or a control character; write one line of text", quote(v.node.Value))
		return "", false
	}
	return v.node.Value, true
}

// name reads v as a string that is not empty.
func (v value) name() (string, bool) {
	s, ok := v.str()
	if ok && s == "" {
		v.fail("is empty; write a value or leave the key out")
		return "", false
	}
	return s, ok
}

// literal returns v as it is written, for fields with a notation of their own
// that YAML may take for a number (31.0) or not (15Gi).
func (v value) literal() (string, bool) {
	if v.node.Kind == yaml.ScalarNode && slices.Contains([]string{"!!str", "!!int", "!!float"}, v.node.Tag) {
		return v.node.Value, true
	}
	v.fail("must be a number or a string, not %s", v.describe())
	return "", false
}

// number returns a number as it is written.
func (v value) number() (string, bool) {
	if v.node.Kind == yaml.ScalarNode && v.node.Tag == "!!int" {
		return v.node.Value, true
	}
	v.fail("must be a whole number without quotes, not %s", v.describe())
	return "", false
}

// boolean reads v as true or false.
func (v value) boolean() bool {
	if v.node.Kind == yaml.ScalarNode && v.node.Tag == "!!bool" {
		switch v.node.Value {
		case "true":
			return true
		case "false":
			return false
		}
	}
	v.fail("must be true or false, not %s", v.describe())
	return false
}

// describe names what v is, for an error.
func (v value) describe() string {
	switch v.node.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch v.node.Tag {
	case "!!null":
		return "nothing (null)"
	case "!!str":
		return "the string " + quote(v.node.Value)
	case "!!int", "!!float":
		return "the number " + bare(v.node.Value)
	case "!!bool":
		return bare(v.node.Value)
	}
	return quote(v.node.Value) + " with the tag " + bare(v.node.Tag)
}

// suggest says which keys are allowed, or which one was meant.
func suggest(key string, keys []string) string {
	for _, k := range keys {
		if strings.EqualFold(k, key) {
			return "write it " + k
		}
	}
	return "allowed are " + list(keys)
}

// list joins names for a sentence.
func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

func quote(s string) string { return strconv.Quote(shorten(s)) }

// bare is quote without the quotes: one line, whatever a tag made of it.
func bare(s string) string {
	q := quote(s)
	return q[1 : len(q)-1]
}

// shorten keeps a message readable.
func shorten(s string) string {
	const most = 80
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most]) + "…"
}
