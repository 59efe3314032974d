package ocispec

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

var (
	errMalformed    = errors.New("malformed JSON")
	errNotObject    = errors.New("not a JSON object")
	errNotList      = errors.New("not a JSON list")
	errAmbiguousKey = errors.New("exists twice or in another case")
)

// object is a JSON object of a spec. Its members keep their order and bytes: unknown fields survive an
// edit. With maps of [json.RawMessage], a start takes 0.2 ms longer for 5 kB, and 1.6 ms for 60 kB.
type object struct {
	parent  *object // nil for the spec itself
	key     string
	prefix  string // of the paths of its members
	members []member
}

// member is a member of an object. name and value are JSON.
type member struct {
	key, name, value string
	edited           *object // replaces value, if it is not nil
}

func (o *object) set(key, value string) {
	o.member(key).value = value
	for ; o.parent != nil; o = o.parent {
		o.parent.member(o.key).edited = o
	}
}

// member returns the member with key, which it adds if there is none.
func (o *object) member(key string) *member {
	i := slices.IndexFunc(o.members, func(m member) bool { return m.key == key })
	if i < 0 {
		i = len(o.members)
		o.members = append(o.members, member{key: key, name: `"` + key + `"`})
	}
	return &o.members[i]
}

func (o *object) appendTo(b []byte) []byte {
	b = append(b, '{')
	for i, m := range o.members {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, m.name...), ':')
		if m.edited != nil {
			b = m.edited.appendTo(b)
		} else {
			b = append(b, m.value...)
		}
	}
	return append(b, '}')
}

// list is a JSON array at key of parent. It has its elements decoded and as raw JSON.
type list[T any] struct {
	parent *object
	key    string
	values []T
	raw    []string
}

// editor reads and edits values of a spec. After the first error, all values are empty and edits do
// nothing.
type editor struct {
	err     error
	changed bool // whether an edit has changed the spec
}

func (e *editor) fail(path string, err error) {
	if e.err == nil {
		e.err = fmt.Errorf("%s: %w", path, err)
	}
}

// get returns the value of key. A value that is null does not exist. Go's decoder, which the
// runtimes use, ignores the case of keys, and the last one takes precedence. So a key that exists
// twice or in another case cannot be edited safely and is an error.
func (e *editor) get(o *object, key string) gjson.Result {
	found := ""
	for _, m := range o.members {
		switch {
		case !strings.EqualFold(m.key, key):
		case found != "" || m.key != key:
			e.fail(o.prefix+key, errAmbiguousKey)
		default:
			found = m.value
		}
	}
	if e.err != nil || found == "null" {
		return gjson.Result{}
	}
	return gjson.Parse(found)
}

// object returns the object at key, an empty one if there is none or null.
func (e *editor) object(o *object, key string) *object {
	value := e.get(o, key)
	if value.Exists() && !value.IsObject() {
		e.fail(o.prefix+key, errNotObject)
	}
	return &object{o, key, o.prefix + key + ".", members(value)}
}

// members returns the members of a JSON object, none of other values.
func members(value gjson.Result) (all []member) {
	value.ForEach(func(key, value gjson.Result) bool {
		all = append(all, member{key: key.Str, name: key.Raw, value: value.Raw})
		return true
	})
	return all
}

// readList returns the list at key, an empty one if there is none or null.
func readList[T any](e *editor, o *object, key string) list[T] {
	l := list[T]{parent: o, key: key}
	value := e.get(o, key)
	if value.Exists() && !value.IsArray() {
		e.fail(o.prefix+key, errNotList)
		return l
	}
	capacity := strings.Count(value.Raw, ",") + 1
	l.values, l.raw = make([]T, 0, capacity), make([]string, 0, capacity)
	value.ForEach(func(_, element gjson.Result) bool {
		l.values, l.raw = append(l.values, *new(T)), append(l.raw, element.Raw)
		if err := decode(element, &l.values[len(l.values)-1]); err != nil {
			e.fail(o.prefix+key, err)
		}
		return e.err == nil
	})
	return l
}

// decode is json.Unmarshal, but faster for strings: most of a spec is the environment.
func decode(value gjson.Result, v any) error {
	if s, ok := v.(*string); ok && value.Type == gjson.String && !strings.Contains(value.Raw, `\`) && utf8.ValidString(value.Str) {
		*s = value.Str
		return nil
	}
	return json.Unmarshal([]byte(value.Raw), v)
}

// editList removes the elements of l whose keys are in remove, then appends those of add whose
// keys no element has.
func editList[T any, K comparable](e *editor, l list[T], remove []K, add []T, keyOf func(T) K) {
	if e.err != nil || len(remove)+len(add) == 0 {
		return
	}
	known, kept := make([]K, 0, len(l.values)+len(add)), make([]string, 0, len(l.values)+len(add))
	for i, value := range l.values {
		if key := keyOf(value); !slices.Contains(remove, key) {
			known, kept = append(known, key), append(kept, l.raw[i])
		}
	}
	changed := len(kept) < len(l.raw)
	for _, value := range add {
		key := keyOf(value)
		if slices.Contains(known, key) {
			continue
		}
		raw, err := marshal(value)
		if err != nil {
			e.err = fmt.Errorf("%s: %w", l.parent.prefix+l.key, err)
			return
		}
		known, kept, changed = append(known, key), append(kept, raw), true
	}
	if changed {
		e.changed = true
		l.parent.set(l.key, "["+strings.Join(kept, ",")+"]")
	}
}

// convert returns the result of f for each value.
func convert[A, B any](values []A, f func(A) B) (converted []B) {
	for _, value := range values {
		converted = append(converted, f(value))
	}
	return converted
}

// marshal is json.Marshal without HTML escapes, so that "&" stays readable.
func marshal(v any) (string, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return strings.TrimSuffix(b.String(), "\n"), err
}
