package ocispec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"unicode/utf8"
)

// object is a JSON object whose values stay as they came in, in their order,
// so that what we do not know passes through an edit unharmed. It holds on to
// the bytes that it was made from: a spec is some 60 kB of which we change a
// few hundred bytes, and each container waits for it.
type object struct {
	members []member
}

// member is one member of an object. name and value are JSON.
type member struct {
	key         string
	name, value []byte
	// object is what value was read as, if it was. It stands for the value where
	// that is nil.
	object *object
}

// json returns the member's value.
func (m member) json() []byte {
	if m.value == nil {
		return m.object.bytes()
	}
	return m.value
}

// checkJSON returns what is wrong with data as JSON.
func checkJSON(data []byte) error {
	if json.Valid(data) {
		return nil
	}
	var nothing struct{}
	return json.Unmarshal(data, &nothing)
}

// parseObject returns the object that data is. data must be valid JSON, which
// [checkJSON] tells: so all that is left to do is to find the ends of values.
func parseObject(data []byte) (*object, error) {
	o := &object{}
	i := skipSpace(data, 0)
	if i >= len(data) || data[i] != '{' {
		return nil, errors.New("it is not a JSON object")
	}
	for i = skipSpace(data, i+1); data[i] != '}'; i = skipSpace(data, i) {
		if data[i] == ',' {
			i++
			continue
		}
		nameEnd := endOfString(data, i)
		begin := skipSpace(data, skipSpace(data, nameEnd)+1)
		end := endOfValue(data, begin)
		m := member{name: data[i:nameEnd], value: data[begin:end]}
		if err := json.Unmarshal(m.name, &m.key); err != nil {
			return nil, err
		}
		o.members = append(o.members, m)
		i = end
	}
	return o, nil
}

func skipSpace(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\t' || data[i] == '\n' || data[i] == '\r') {
		i++
	}
	return i
}

// endOfString returns the position after the string that begins at i.
func endOfString(data []byte, i int) int {
	for i++; ; i++ {
		i += bytes.IndexByte(data[i:], '"')
		escapes := 0
		for data[i-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i + 1
		}
	}
}

// endOfValue returns the position after the value that begins at i.
func endOfValue(data []byte, i int) int {
	for depth := 0; ; {
		switch data[i] {
		case '"':
			i = endOfString(data, i)
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		default:
			i++
		}
		if depth == 0 && (i == len(data) || strings.IndexByte(",]} \t\r\n", data[i]) >= 0) {
			return i
		}
	}
}

// find returns the position of key, -1 when it is not there. Go's decoder,
// which the runtimes use, matches keys without regard to case and lets the
// last one win, so that a key which stands there twice, or in another
// spelling, would be read by them in a way that we cannot edit safely.
func (o *object) find(key string) (int, error) {
	found := -1
	for i, m := range o.members {
		if !strings.EqualFold(m.key, key) {
			continue
		}
		if found >= 0 || m.key != key {
			return 0, fmt.Errorf("%q is there twice or in another spelling", key)
		}
		found = i
	}
	return found, nil
}

// get decodes the value of key into v, which stays as it is when there is none
// or null.
func (o *object) get(key string, v any) error {
	i, err := o.find(key)
	if err != nil || i < 0 {
		return err
	}
	if err := json.Unmarshal(o.members[i].json(), v); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// list returns the JSON array at key, an empty one when there is none or null.
func (o *object) list(key string) ([]byte, error) {
	there, err := o.has(key)
	if err != nil || !there {
		return []byte("[]"), err
	}
	i, err := o.find(key)
	if err != nil {
		return nil, err
	}
	data := o.members[i].json()
	if data[0] != '[' {
		return nil, fmt.Errorf("%s: it is not a list", key)
	}
	return data, nil
}

// texts is get for a list of strings. It is for the environment, most of a
// spec, on which [json.Unmarshal] would spend more time than all the rest takes.
func (o *object) texts(key string) ([]string, error) {
	i, err := o.find(key)
	if err != nil || i < 0 {
		return nil, err
	}
	if list, ok := plainTexts(o.members[i].json()); ok {
		return list, nil
	}
	var list []string
	err = o.get(key, &list)
	return list, err
}

// plainTexts returns the strings of the JSON array data, unless it is something
// else or there is a string in it that is not written as it is.
func plainTexts(data []byte) (list []string, ok bool) {
	if data[0] != '[' {
		return nil, false
	}
	all := string(data)
	list = make([]string, 0, bytes.Count(data, []byte{'"'})/2)
	for begin, end := range elements(data) {
		if _, ok := plainText(data[begin:end]); !ok {
			return nil, false
		}
		list = append(list, all[begin+1:end-1])
	}
	return list, true
}

// plainText returns the text of the JSON value raw, if that is a string which is
// written as it is.
func plainText(raw []byte) (text []byte, ok bool) {
	if raw[0] != '"' {
		return nil, false
	}
	text = raw[1 : len(raw)-1]
	return text, bytes.IndexByte(text, '\\') < 0 && utf8.Valid(text)
}

// text returns the string that the JSON value raw is, an empty one for null.
func text(raw []byte) ([]byte, error) {
	if plain, ok := plainText(raw); ok {
		return plain, nil
	}
	var decoded string
	err := json.Unmarshal(raw, &decoded)
	return []byte(decoded), err
}

// elements returns where each value of the JSON array data begins and ends.
func elements(data []byte) iter.Seq2[int, int] {
	return func(yield func(begin, end int) bool) {
		for i := skipSpace(data, 1); data[i] != ']'; i = skipSpace(data, i) {
			if data[i] == ',' {
				i++
				continue
			}
			end := endOfValue(data, i)
			if !yield(i, end) {
				return
			}
			i = end
		}
	}
}

// appended returns the JSON array data with the JSON values more behind its own.
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

// has tells whether there is a value at key that is not null.
func (o *object) has(key string) (bool, error) {
	i, err := o.find(key)
	return err == nil && i >= 0 && string(o.members[i].value) != "null", err
}

// child returns the object at key, an empty one when there is none or null. What
// is changed in it takes effect with [object.set].
func (o *object) child(key string) (*object, error) {
	there, err := o.has(key)
	if err != nil || !there {
		return &object{}, err
	}
	i, err := o.find(key)
	if err != nil {
		return nil, err
	}
	m := &o.members[i]
	if m.object == nil {
		if m.object, err = parseObject(m.value); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	return m.object, nil
}

// set puts v in the place of key's value, or at the end: an [object], JSON as a
// [json.RawMessage], or what JSON can be made of.
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
	default:
		m.object = nil
		if m.value, err = marshal(v); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

// bytes returns o as JSON.
func (o *object) bytes() []byte { return o.appendTo(make([]byte, 0, o.size())) }

// size is the length of o as JSON, or a little more.
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

// appendTo appends o to b as JSON.
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

// marshal is json.Marshal without the escapes for HTML: a path with "&" in it
// stays readable.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
