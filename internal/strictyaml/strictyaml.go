// Package strictyaml reads YAML that people write, and says where in it what is
// wrong: the line, and the path of the value.
//
// A document is read value by value, by methods that say what the value must be.
// What is not as it must be is noted and reading goes on, so that all problems
// are told at once. No value is guessed: "yes" is no boolean, a number is no
// string, and an unknown key, a key that is there twice and a merge key are
// problems. Anchors and aliases work.
package strictyaml

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

// Reader reads one document and collects its problems.
type Reader struct {
	options  Options
	problems Problems
	values   int // looked at so far, aliases counted each time
}

// Options say what a document is called and how large it may be.
type Options struct {
	// Name names the document in every problem: a file's path, for example.
	Name string
	// What a sentence calls the document: "file" when it is "".
	What string
	// MaxBytes is how long the document may be.
	MaxBytes int
	// MaxValues is how many values it may have, aliases counted each time: small
	// documents can be made to stand for endless ones.
	MaxValues int
	// Empty says what to do about a document with nothing in it.
	Empty string
	// Second says what to do about a second document behind it.
	Second string
}

// NewReader returns a reader for one document.
func NewReader(o Options) *Reader {
	if o.What == "" {
		o.What = "file"
	}
	return &Reader{options: o}
}

// Err returns the [Problems] so far in the order of lines, and nil when there
// are none.
func (r *Reader) Err() error {
	if len(r.problems) == 0 {
		return nil
	}
	r.problems.sort()
	return r.problems
}

func (r *Reader) fail(line int, path, format string, args ...any) {
	r.problems = append(r.problems, Problem{File: r.options.Name, Line: max(line, 1), Path: path, Text: fmt.Sprintf(format, args...)})
}

// Document returns the root of the only document in data. When ok is false, [Reader.Err]
// says why.
func (r *Reader) Document(data []byte) (root Value, ok bool) {
	if len(data) > r.options.MaxBytes {
		r.fail(1, "", "the %s has %d bytes; at most %d are allowed", r.options.What, len(data), r.options.MaxBytes)
		return Value{}, false
	}
	if line := firstForeignLine(data); line > 0 {
		r.fail(line, "", "there are bytes that are not UTF-8 text; save the %s as UTF-8 (without NUL and other control characters)", r.options.What)
		return Value{}, false
	}
	docs := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	switch err := decodeNext(docs, &doc); {
	case errors.Is(err, io.EOF), err == nil && isBlank(&doc):
		r.fail(1, "", "the %s is empty; %s", r.options.What, r.options.Empty)
		return Value{}, false
	case err != nil:
		r.syntax(err, data)
		return Value{}, false
	}
	switch err := decodeNext(docs, &next); {
	case err == nil:
		r.fail(next.Line, "", "there is a second YAML document; %s", r.options.Second)
		return Value{}, false
	case !errors.Is(err, io.EOF):
		r.syntax(err, data)
		return Value{}, false
	}
	return r.value(doc.Content[0], ""), true
}

// decodeNext reads one document. The library reports what it does not expect
// of itself by panicking ("please report"), also where an input is to blame;
// whoever reads a file that others write wants an error.
func decodeNext(docs *yaml.Decoder, doc *yaml.Node) (err error) {
	defer func() {
		if mistake := recover(); mistake != nil {
			err = fmt.Errorf("yaml: %v", mistake)
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
func (r *Reader) syntax(err error, data []byte) {
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
	r.fail(line, "", "the YAML that begins here cannot be read: %s; correct the line or one soon below it", text)
}

// Value is one value of a document.
type Value struct {
	r    *Reader
	node *yaml.Node // never an alias
	path string
}

func (r *Reader) value(node *yaml.Node, path string) Value {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	return Value{r: r, node: node, path: path}
}

// Path leads to the value, for example devices[0].driver.version; "" is the
// whole document.
func (v Value) Path() string { return v.path }

// Fail notes a problem with the value. The text says what is wrong and, after a
// semicolon, what to write.
func (v Value) Fail(format string, args ...any) { v.r.fail(v.node.Line, v.path, format, args...) }

// Obeys notes err, if any, as the value's problem, and tells whether there was
// none.
func (v Value) Obeys(err error) bool {
	if err != nil {
		v.Fail("%v", err)
	}
	return err == nil
}

// AtMost notes a text that has more than limit characters.
func (v Value) AtMost(limit int) {
	if n := utf8.RuneCountInString(v.node.Value); n > limit {
		v.Fail("has %d characters; at most %d are allowed", n, limit)
	}
}

// Aside returns the value so that its problems are not noted.
func (v Value) Aside() Value {
	v.r = NewReader(v.r.options)
	return v
}

// spend counts n values and tells whether that many are still allowed.
func (v Value) spend(n int) bool {
	before := v.r.values
	v.r.values += n
	if v.r.values <= v.r.options.MaxValues {
		return true
	}
	if before <= v.r.options.MaxValues {
		v.Fail("the %s has more than %d values, aliases counted each time; remove some", v.r.options.What, v.r.options.MaxValues)
	}
	return false
}

const mergeKeys = "merge keys (<<) are not allowed; give each value an anchor and an alias of its own, or write it out"

// Object is a mapping whose keys are known.
type Object struct {
	Value
	fields map[string]Value
}

// Object reads v as a mapping with no other keys than these. ok is false when
// it is no mapping; single bad keys are reported and left out.
func (v Value) Object(keys ...string) (o Object, ok bool) {
	if v.node.Kind != yaml.MappingNode || v.node.Tag != "!!map" {
		v.Fail("must be a mapping with %s, not %s", List(keys), v.Describe())
		return Object{}, false
	}
	if !v.spend(len(v.node.Content) / 2) {
		return Object{}, false
	}
	o = Object{Value: v, fields: make(map[string]Value, len(keys))}
	firstLine := make(map[string]int, len(keys))
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		key := v.node.Content[i]
		path := key.Value
		if v.path != "" {
			path = v.path + "." + path
		}
		switch {
		case key.Kind != yaml.ScalarNode:
			v.r.fail(key.Line, v.path, "a key is not a plain name; allowed are %s", List(keys))
		case key.Tag == "!!merge":
			v.r.fail(key.Line, v.path, mergeKeys)
		case key.Tag != "!!str" || !slices.Contains(keys, key.Value):
			v.r.fail(key.Line, v.path, "the key %s is not known; %s", Quote(key.Value), suggest(key.Value, keys))
		case firstLine[key.Value] > 0:
			v.r.fail(key.Line, path, "is there twice, first in line %d; remove one", firstLine[key.Value])
		default:
			firstLine[key.Value] = key.Line
			o.fields[key.Value] = v.r.value(v.node.Content[i+1], path)
		}
	}
	return o, true
}

// Head tells whether v is a mapping that says that it is of this apiVersion and
// kind, and notes what is wrong if not: the rest of a document of another kind or
// version is only noise then. keys are all that the mapping may have.
func (v Value) Head(apiVersion, kind string, keys ...string) bool {
	top, ok := v.Aside().Object(keys...)
	if !ok {
		v.Fail("must be a mapping with %s, not %s", List(keys), v.Describe())
		return false
	}
	good := true
	for _, line := range []struct{ key, want string }{{"apiVersion", apiVersion}, {"kind", kind}} {
		field, found := top.Get(line.key)
		switch {
		case !found:
			v.Fail("%s is missing; write \"%s: %s\"", line.key, line.key, line.want)
			good = false
		case !field.IsString() || field.node.Value != line.want:
			v.r.fail(field.node.Line, line.key, "%s is not known; write %s", field.Describe(), line.want)
			good = false
		}
	}
	return good
}

// Get returns the value of a key, and whether it is there.
func (o Object) Get(key string) (Value, bool) {
	v, ok := o.fields[key]
	return v, ok
}

// Require returns the value of a key and reports its absence.
func (o Object) Require(key, hint string) (Value, bool) {
	v, ok := o.fields[key]
	if !ok {
		o.Fail("%s is missing; %s", key, hint)
	}
	return v, ok
}

// Items reads v as a list of at most limit values.
func (v Value) Items(limit int) ([]Value, bool) {
	switch {
	case v.node.Kind != yaml.SequenceNode || v.node.Tag != "!!seq":
		v.Fail("must be a list, not %s; an empty one is written []", v.Describe())
		return nil, false
	case len(v.node.Content) > limit:
		v.Fail("has %d entries; at most %d are allowed", len(v.node.Content), limit)
		return nil, false
	case !v.spend(len(v.node.Content)):
		return nil, false
	}
	items := make([]Value, len(v.node.Content))
	for i, node := range v.node.Content {
		items[i] = v.r.value(node, v.path+"["+strconv.Itoa(i)+"]")
	}
	return items, true
}

// IsString tells whether v is a string, of one line or more.
func (v Value) IsString() bool { return v.node.Kind == yaml.ScalarNode && v.node.Tag == "!!str" }

// IsList tells whether v is a list.
func (v Value) IsList() bool { return v.node.Kind == yaml.SequenceNode }

// IsEmptyList tells whether v is a list without entries.
func (v Value) IsEmptyList() bool { return v.IsList() && len(v.node.Content) == 0 }

// IsMapping tells whether v is a mapping.
func (v Value) IsMapping() bool { return v.node.Kind == yaml.MappingNode }

// Has tells whether v is a mapping that has the key, whatever its value is.
func (v Value) Has(key string) bool {
	if !v.IsMapping() {
		return false
	}
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		if v.node.Content[i].Value == key {
			return true
		}
	}
	return false
}

// String reads v as a string of one line. A number or a boolean is not a string
// unless it is quoted.
func (v Value) String() (string, bool) {
	if !v.IsString() {
		v.Fail("must be a string, not %s; quote it if it is one", v.Describe())
		return "", false
	}
	if strings.ContainsFunc(v.node.Value, unicode.IsControl) {
		v.Fail("%s has a line break or a control character; write one line of text", Quote(v.node.Value))
		return "", false
	}
	return v.node.Value, true
}

// Name reads v as a string that is not empty.
func (v Value) Name() (string, bool) {
	s, ok := v.String()
	if ok && s == "" {
		v.Fail("is empty; write a value or leave the key out")
		return "", false
	}
	return s, ok
}

// Literal returns v as it is written, for fields with a notation of their own
// that YAML may take for a number (31.0) or not (15Gi).
func (v Value) Literal() (string, bool) {
	if v.node.Kind == yaml.ScalarNode && slices.Contains([]string{"!!str", "!!int", "!!float"}, v.node.Tag) {
		return v.node.Value, true
	}
	v.Fail("must be a number or a string, not %s", v.Describe())
	return "", false
}

// Number returns a whole number as it is written.
func (v Value) Number() (string, bool) {
	if v.node.Kind == yaml.ScalarNode && v.node.Tag == "!!int" {
		return v.node.Value, true
	}
	v.Fail("must be a whole number without quotes, not %s", v.Describe())
	return "", false
}

// Bool reads v as true or false.
func (v Value) Bool() (value, ok bool) {
	if v.node.Kind == yaml.ScalarNode && v.node.Tag == "!!bool" {
		switch v.node.Value {
		case "true":
			return true, true
		case "false":
			return false, true
		}
	}
	v.Fail("must be true or false, not %s", v.Describe())
	return false, false
}

// Describe names what v is, for an error.
func (v Value) Describe() string {
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
		return "the string " + Quote(v.node.Value)
	case "!!int", "!!float":
		return "the number " + bare(v.node.Value)
	case "!!bool":
		return bare(v.node.Value)
	}
	return Quote(v.node.Value) + " with the tag " + bare(v.node.Tag)
}

// suggest says which keys are allowed, or which one was meant.
func suggest(key string, keys []string) string {
	for _, k := range keys {
		if strings.EqualFold(k, key) {
			return "write it " + k
		}
	}
	return "allowed are " + List(keys)
}

// List joins names for a sentence.
func List(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

// Quote returns s in quotes, on one line and not too long, for an error.
func Quote(s string) string { return strconv.Quote(shorten(s)) }

// bare is quote without the quotes: one line, whatever a tag made of it.
func bare(s string) string {
	q := Quote(s)
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

// Read reads a scalar's text by text and gives it its meaning by parse, whose
// error it notes.
func Read[T any](v Value, text func(Value) (string, bool), parse func(string) (T, error)) (T, bool) {
	var zero T
	s, ok := text(v)
	if !ok {
		return zero, false
	}
	result, err := parse(s)
	if !v.Obeys(err) {
		return zero, false
	}
	return result, true
}

// Entry is one key of a mapping whose keys are the writer's choice.
type Entry struct{ Key, Value Value }

// Entries reads v as a mapping of at most limit keys, which are any scalars.
func (v Value) Entries(limit int) ([]Entry, bool) {
	switch {
	case !v.IsMapping() || v.node.Tag != "!!map":
		v.Fail("must be a mapping, not %s; an empty one is written {}", v.Describe())
		return nil, false
	case len(v.node.Content)/2 > limit:
		v.Fail("has %d keys; at most %d are allowed", len(v.node.Content)/2, limit)
		return nil, false
	case !v.spend(len(v.node.Content) / 2):
		return nil, false
	}
	var entries []Entry
	firstLine := map[string]int{}
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		key := v.node.Content[i]
		path := key.Value
		if v.path != "" {
			path = v.path + "." + path
		}
		switch {
		case key.Kind != yaml.ScalarNode:
			v.r.fail(key.Line, v.path, "a key is not a plain name")
		case key.Tag == "!!merge":
			v.r.fail(key.Line, v.path, mergeKeys)
		case firstLine[key.Value] > 0:
			v.r.fail(key.Line, path, "is there twice, first in line %d; remove one", firstLine[key.Value])
		default:
			firstLine[key.Value] = key.Line
			entries = append(entries, Entry{Key: v.r.value(key, path), Value: v.r.value(v.node.Content[i+1], path)})
		}
	}
	return entries, true
}

// Unique remembers where what must be unique in a document was seen.
type Unique map[string]Value

// Claim notes a problem with v when another value has the same key of that kind
// already.
func (u Unique) Claim(v Value, kind, key string) {
	key = kind + "\n" + key
	if earlier, taken := u[key]; taken {
		v.Fail("is the same as %s in line %d; it must be unique", earlier.path, earlier.node.Line)
		return
	}
	u[key] = v
}
