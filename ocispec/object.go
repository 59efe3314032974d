package ocispec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// object is a JSON object whose values keep their bytes and order, so that
// unknown fields survive an edit. A spec has some 60 kB of which an edit changes
// a few hundred bytes, and each container waits for it.
type object struct {
	members []member
}

// member is one member of an object. name and value are JSON.
type member struct {
	key         string
	name, value []byte
	// object is the parsed value. It replaces value where that is nil.
	object *object
}

func (m member) json() []byte {
	if m.value == nil {
		return m.object.bytes()
	}
	return m.value
}

var (
	errMalformed = errors.New("malformed JSON")
	errNoObject  = errors.New("not a JSON object")
	errNoList    = errors.New("not a JSON list")
)

// The functions from here to eachElement find where JSON values end. They do
// not validate values: containerd writes valid JSON, and the runtime decodes the
// spec again and refuses everything else. They never read beyond the data.

func skipSpace(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\t' || data[i] == '\n' || data[i] == '\r') {
		i++
	}
	return i
}

// byteAt returns the byte at i, 0 after the end.
func byteAt(data []byte, i int) byte {
	if i < len(data) {
		return data[i]
	}
	return 0
}

// stringEnd returns the position after the string that begins at i, -1 if it
// does not end.
func stringEnd(data []byte, i int) int {
	for begin := i; ; {
		next := bytes.IndexByte(data[i+1:], '"')
		if next < 0 {
			return -1
		}
		i += 1 + next
		escapes := 0
		for i-1-escapes > begin && data[i-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i + 1
		}
	}
}

// valueEnd returns the position after the value that begins at i, -1 if there is
// none.
func valueEnd(data []byte, i int) int {
	for depth := 0; i < len(data); {
		switch data[i] {
		case '"':
			if i = stringEnd(data, i); i < 0 {
				return -1
			}
		case '{', '[':
			depth++
			i++
		case '}', ']':
			if depth--; depth < 0 {
				return -1
			}
			i++
		case ',', ':', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return -1
			}
			i++
		default:
			for i < len(data) && strings.IndexByte(",:{}[]\" \t\r\n", data[i]) < 0 {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
	return -1
}

// eachElement calls do with the position and end of each value of the JSON array
// data.
func eachElement(data []byte, do func(begin, end int) error) error {
	if byteAt(data, 0) != '[' {
		return errNoList
	}
	i := skipSpace(data, 1)
	if byteAt(data, i) == ']' {
		return nil
	}
	for {
		end := valueEnd(data, i)
		if end < 0 {
			return errMalformed
		}
		if err := do(i, end); err != nil {
			return err
		}
		i = skipSpace(data, end)
		switch byteAt(data, i) {
		case ',':
			i = skipSpace(data, i+1)
		case ']':
			return nil
		default:
			return errMalformed
		}
	}
}

// parseObject parses the JSON object data.
func parseObject(data []byte) (*object, error) {
	o := &object{}
	i := skipSpace(data, 0)
	if byteAt(data, i) != '{' {
		return nil, errNoObject
	}
	i = skipSpace(data, i+1)
	if byteAt(data, i) == '}' {
		return o, endOfData(data, i+1)
	}
	for {
		if byteAt(data, i) != '"' {
			return nil, errMalformed
		}
		nameEnd := stringEnd(data, i)
		if nameEnd < 0 {
			return nil, errMalformed
		}
		colon := skipSpace(data, nameEnd)
		begin := skipSpace(data, colon+1)
		end := valueEnd(data, begin)
		if byteAt(data, colon) != ':' || end < 0 {
			return nil, errMalformed
		}
		m := member{name: data[i:nameEnd], value: data[begin:end]}
		key, err := text(m.name)
		if err != nil {
			return nil, err
		}
		m.key = string(key)
		o.members = append(o.members, m)
		i = skipSpace(data, end)
		switch byteAt(data, i) {
		case ',':
			i = skipSpace(data, i+1)
		case '}':
			return o, endOfData(data, i+1)
		default:
			return nil, errMalformed
		}
	}
}

// endOfData returns an error if there is more than white space from i on.
func endOfData(data []byte, i int) error {
	if skipSpace(data, i) < len(data) {
		return errMalformed
	}
	return nil
}

// find returns the position of key, -1 if there is none. Go's decoder, which the
// runtimes use, ignores the case of keys and lets the last one win: a key that
// exists twice or in another case cannot be edited safely and is an error.
func (o *object) find(key string) (int, error) {
	found := -1
	for i, m := range o.members {
		if !strings.EqualFold(m.key, key) {
			continue
		}
		if found >= 0 || m.key != key {
			return 0, fmt.Errorf("%q exists twice or in another case", key)
		}
		found = i
	}
	return found, nil
}

// member returns the member of key, nil if there is none or its value is null.
func (o *object) member(key string) (*member, error) {
	i, err := o.find(key)
	if err != nil || i < 0 || string(o.members[i].value) == "null" {
		return nil, err
	}
	return &o.members[i], nil
}

// get decodes the value of key into v, which is unchanged if there is none.
func (o *object) get(key string, v any) error {
	m, err := o.member(key)
	if err != nil || m == nil {
		return err
	}
	if err := json.Unmarshal(m.json(), v); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// has reports whether there is a value of key that is not null.
func (o *object) has(key string) (bool, error) {
	m, err := o.member(key)
	return m != nil, err
}

// list returns the JSON array at key, an empty one if there is none or null.
func (o *object) list(key string) ([]byte, error) {
	m, err := o.member(key)
	if err != nil || m == nil {
		return []byte("[]"), err
	}
	data := m.json()
	if data[0] != '[' {
		return nil, fmt.Errorf("%s: %w", key, errNoList)
	}
	return data, nil
}

// texts is get for a list of strings. It is for the environment, most of a spec,
// whose strings share one copy.
func (o *object) texts(key string) ([]string, error) {
	data, err := o.list(key)
	if err != nil {
		return nil, err
	}
	all := string(data)
	list := make([]string, 0, strings.Count(all, `",`)+1)
	err = eachElement(data, func(begin, end int) error {
		if _, ok := plainText(data[begin:end]); ok {
			list = append(list, all[begin+1:end-1])
			return nil
		}
		decoded, err := text(data[begin:end])
		list = append(list, string(decoded))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return list, nil
}

// plainText returns the text of the JSON value raw if it is a string without
// escapes.
func plainText(raw []byte) (text []byte, ok bool) {
	if raw[0] != '"' {
		return nil, false
	}
	text = raw[1 : len(raw)-1]
	return text, bytes.IndexByte(text, '\\') < 0 && utf8.Valid(text)
}

// text returns the text of the JSON string raw, an empty one for null.
func text(raw []byte) ([]byte, error) {
	if plain, ok := plainText(raw); ok {
		return plain, nil
	}
	var decoded string
	err := json.Unmarshal(raw, &decoded)
	return []byte(decoded), err
}

// appended returns the JSON array data with the JSON values more at its end.
func appended(data []byte, more ...[]byte) []byte {
	size := len(data)
	for _, raw := range more {
		size += len(",") + len(raw)
	}
	own := bytes.TrimRight(data[:len(data)-1], " \t\r\n")
	empty := len(own) == 1
	list := append(make([]byte, 0, size), own...)
	for _, raw := range more {
		if !empty {
			list = append(list, ',')
		}
		list, empty = append(list, raw...), false
	}
	return append(list, ']')
}

// child returns the object at key, an empty one if there is none or null.
// Changes take effect with [object.set].
func (o *object) child(key string) (*object, error) {
	m, err := o.member(key)
	if err != nil || m == nil {
		return &object{}, err
	}
	if m.object == nil {
		if m.object, err = parseObject(m.value); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	return m.object, nil
}

// set sets the value of key to v: an [object] or JSON.
func (o *object) set(key string, v any) error {
	i, err := o.find(key)
	if err != nil {
		return err
	}
	if i < 0 {
		name, err := marshal(key)
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		i = len(o.members)
		o.members = append(o.members, member{key: key, name: name})
	}
	m := &o.members[i]
	switch v := v.(type) {
	case *object:
		m.value, m.object = nil, v
	case json.RawMessage:
		m.value, m.object = v, nil
	}
	return nil
}

// bytes returns o as JSON.
func (o *object) bytes() []byte { return o.appendTo(make([]byte, 0, o.size())) }

// size returns at least the length of o as JSON.
func (o *object) size() int {
	size := len("{}")
	for _, m := range o.members {
		size += len(m.name) + len(":,")
		if m.value == nil {
			size += m.object.size()
		} else {
			size += len(m.value)
		}
	}
	return size
}

func (o *object) appendTo(b []byte) []byte {
	b = append(b, '{')
	for i, m := range o.members {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, m.name...), ':')
		if m.value == nil {
			b = m.object.appendTo(b)
		} else {
			b = append(b, m.value...)
		}
	}
	return append(b, '}')
}

// marshal is json.Marshal without HTML escapes, so that "&" stays readable.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
