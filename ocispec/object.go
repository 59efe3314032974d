package ocispec

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"
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
	name, value string
	// object is the parsed value. It replaces value where that is "".
	object *object
}

func (m member) json() string {
	if m.value == "" {
		return string(m.object.appendTo(nil))
	}
	return m.value
}

var (
	errMalformed = errors.New("malformed JSON")
	errNoObject  = errors.New("not a JSON object")
	errNoList    = errors.New("not a JSON list")
	errTwice     = errors.New("exists twice or in another case")
)

// parseObject parses a JSON object. data must be valid: see [ParseSpec].
func parseObject(data string) (o *object, err error) {
	value := gjson.Parse(data)
	if !value.IsObject() {
		return nil, errNoObject
	}
	o = &object{}
	value.ForEach(func(name, value gjson.Result) bool {
		m := member{name: name.Raw, value: value.Raw}
		err = decode(m.name, &m.key)
		o.members = append(o.members, m)
		return err == nil
	})
	return o, err
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
			return 0, fmt.Errorf("%q %w", key, errTwice)
		}
		found = i
	}
	return found, nil
}

// member returns the member of key, nil if there is none or its value is null.
func (o *object) member(key string) (*member, error) {
	i, err := o.find(key)
	if err != nil || i < 0 || o.members[i].value == "null" {
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
	return wrap(key, json.Unmarshal([]byte(m.json()), v))
}

// has reports whether there is a value of key that is not null.
func (o *object) has(key string) (bool, error) {
	m, err := o.member(key)
	return m != nil, err
}

// elements are the elements of a list, decoded and as JSON.
type elements[T any] struct {
	values []T
	raw    []string
}

// list returns the elements of the JSON array at key, none if there is no value or
// null.
func list[T any](o *object, key string) (l elements[T], err error) {
	m, err := o.member(key)
	if err != nil || m == nil {
		return l, err
	}
	text := m.json()
	count := strings.Count(text, `",`) + 1 // for a list of strings
	l = elements[T]{make([]T, 0, count), make([]string, 0, count)}
	array := gjson.Parse(text)
	if !array.IsArray() {
		return l, wrap(key, errNoList)
	}
	array.ForEach(func(_, element gjson.Result) bool {
		i := len(l.values)
		l.values, l.raw = append(l.values, *new(T)), append(l.raw, element.Raw)
		if err = decode(element.Raw, &l.values[i]); err != nil {
			err = fmt.Errorf("element %d: %w", i, err)
		}
		return err == nil
	})
	return l, wrap(key, err)
}

// decode is json.Unmarshal, but faster for strings: the environment is most of a
// spec.
func decode(raw string, v any) error {
	if s, ok := v.(*string); ok && raw[0] == '"' {
		*s = raw[1 : len(raw)-1]
		if strings.IndexByte(*s, '\\') < 0 && utf8.ValidString(*s) {
			return nil
		}
	}
	return json.Unmarshal([]byte(raw), v)
}

// child returns the object at key, an empty one if there is none or null.
// Changes take effect with [object.set].
func (o *object) child(key string) (*object, error) {
	m, err := o.member(key)
	if err != nil || m == nil {
		return &object{}, err
	}
	if m.object == nil {
		m.object, err = parseObject(m.value)
	}
	return m.object, wrap(key, err)
}

// edit changes the object at key, an empty one if there is none or null. change reports
// whether it has changed it.
func (o *object) edit(key string, change func(*object) (bool, error)) (bool, error) {
	child, err := o.child(key)
	if err != nil {
		return false, err
	}
	changed, err := change(child)
	if err != nil || !changed {
		return false, wrap(key, err)
	}
	return true, o.set(key, child, "")
}

// set sets the value of key to v, or to JSON if v is nil.
func (o *object) set(key string, v *object, json string) error {
	i, err := o.find(key)
	if err != nil {
		return err
	}
	if i < 0 {
		name, err := marshal(key)
		if err != nil {
			return wrap(key, err)
		}
		i = len(o.members)
		o.members = append(o.members, member{key: key, name: name})
	}
	o.members[i].value, o.members[i].object = json, v
	return nil
}

// appendTo appends o as JSON to b.
func (o *object) appendTo(b []byte) []byte {
	b = append(b, '{')
	for i, m := range o.members {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, m.name...), ':')
		if m.value == "" {
			b = m.object.appendTo(b)
		} else {
			b = append(b, m.value...)
		}
	}
	return append(b, '}')
}

// marshal is json.Marshal without HTML escapes, so that "&" stays readable.
func marshal(v any) (string, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return strings.TrimSuffix(b.String(), "\n"), err
}

func wrap(where string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", where, err)
}
