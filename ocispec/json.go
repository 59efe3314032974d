package ocispec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

var (
	errMalformed    = errors.New("malformed JSON")
	errNotObject    = errors.New("not a JSON object")
	errNotList      = errors.New("not a JSON list")
	errAmbiguousKey = errors.New("exists twice or in another case")
)

// object is a JSON object of a spec. Unknown fields survive an edit.
type object struct {
	parent  *object // nil for the whole spec
	key     string  // in parent
	prefix  string  // of the paths of its members
	members map[string]json.RawMessage
	changed bool
}

// element is an element of a JSON list with its JSON, so that its unknown fields survive. An element
// that an edit adds has no JSON.
type element[T any] struct {
	value T
	raw   json.RawMessage
}

func (e *element[T]) UnmarshalJSON(data []byte) error {
	e.raw = bytes.Clone(data)
	return json.Unmarshal(data, &e.value)
}

func (e element[T]) MarshalJSON() ([]byte, error) {
	if e.raw != nil {
		return e.raw, nil
	}
	return marshal(e.value)
}

// elements returns new elements with values.
func elements[T any](values []T) (list []element[T]) {
	for _, value := range values {
		list = append(list, element[T]{value: value})
	}
	return list
}

// editor reads and edits values of a spec. After the first error, all values are empty and edits do
// nothing.
type editor struct{ err error }

func (e *editor) fail(path string, err error) {
	if e.err == nil {
		e.err = fmt.Errorf("%s: %w", path, err)
	}
}

// get returns the value of key, nil if there is none or null. Go's decoder, which the runtimes use,
// ignores the case of keys. So a key that exists in another case cannot be edited safely and is an error.
func (e *editor) get(o *object, key string) json.RawMessage {
	for k := range o.members {
		if k != key && strings.EqualFold(k, key) {
			e.fail(o.prefix+key, errAmbiguousKey)
		}
	}
	value := o.members[key]
	if e.err != nil || string(value) == "null" {
		return nil
	}
	return value
}

// object returns the object at key, an empty one if there is none or null.
func (e *editor) object(o *object, key string) *object {
	members := map[string]json.RawMessage{}
	if value := e.get(o, key); value != nil {
		var err error
		if members, err = decodeObject(value); err != nil {
			e.fail(o.prefix+key, err)
		}
	}
	return &object{parent: o, key: key, prefix: o.prefix + key + ".", members: members}
}

// set replaces the value of key.
func (e *editor) set(o *object, key string, value any) {
	if e.err != nil {
		return
	}
	raw, err := marshal(value)
	if err != nil {
		e.fail(o.prefix+key, err)
		return
	}
	o.members[key], o.changed = raw, true
}

// decodeObject returns the members of a JSON object. Of a key that exists twice, a map would lose one.
func decodeObject(data []byte) (map[string]json.RawMessage, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	switch start, err := decoder.Token(); {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	case start != json.Delim('{'):
		return nil, errNotObject
	}
	members := map[string]json.RawMessage{}
	for decoder.More() {
		key, err := decoder.Token()
		var value json.RawMessage
		if err == nil {
			err = decoder.Decode(&value)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errMalformed, err)
		}
		name, _ := key.(string) // Token refuses other keys.
		if _, exists := members[name]; exists {
			return nil, fmt.Errorf("%q %w", name, errAmbiguousKey)
		}
		members[name] = value
	}
	if _, err := decoder.Token(); err != nil { // the closing brace
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, errMalformed
	}
	return members, nil
}

// readList returns the list at key, an empty one if there is none or null.
func readList[E any](e *editor, o *object, key string) (list []E) {
	value := e.get(o, key)
	if value == nil {
		return nil
	}
	if value[0] != '[' {
		e.fail(o.prefix+key, errNotList)
		return nil
	}
	if err := json.Unmarshal(value, &list); err != nil {
		e.fail(o.prefix+key, err)
	}
	return list
}

// editList removes the elements of list whose keys are in remove, then appends those of add whose
// keys no element has. If that changes the list, it sets key of o.
func editList[E any, K comparable](e *editor, o *object, key string, list []E, remove []K, add []E, keyOf func(E) K) {
	if len(remove)+len(add) == 0 {
		return
	}
	known, kept := make([]K, 0, len(list)+len(add)), make([]E, 0, len(list)+len(add))
	for _, value := range list {
		if k := keyOf(value); !slices.Contains(remove, k) {
			known, kept = append(known, k), append(kept, value)
		}
	}
	changed := len(kept) < len(list)
	for _, value := range add {
		if k := keyOf(value); !slices.Contains(known, k) {
			known, kept, changed = append(known, k), append(kept, value), true
		}
	}
	if changed {
		e.set(o, key, kept)
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
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}
