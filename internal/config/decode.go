package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// isShorthand reports whether a value of a type can be written as one scalar: a list as its
// only item, a mapping as the value of its first key.
func isShorthand(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[policy.Vendors](), reflect.TypeFor[policy.Patterns](), reflect.TypeFor[policy.AddedFile](),
		reflect.TypeFor[discovery.RuntimeFile](), reflect.TypeFor[discovery.DeviceNode](), reflect.TypeFor[discovery.Library]():
		return true
	}
	return false
}

var errNoValue = errors.New("no value: set one, or remove the key")

// decode decodes the document into file, a pointer to a [File] or an [Inventory].
func (d *document) decode(file any) {
	if d.root != nil {
		d.decodeValue("", d.root, reflect.ValueOf(file).Elem(), nil)
	}
}

// decodeValue decodes the value of the key at path into v. It adds an error for each key below
// that is unknown or missing, and for each value that does not have the type of its field
// or is outside of the limits in the field's jsonschema tag, which the JSON schema has, too.
//
// Strict decoders of libraries do less: yaml reports all errors, but names fields and types of
// Go, not keys; goccy/go-yaml (v1.19.2) and sigs.k8s.io/yaml (v1.6.0) end at the first error.
func (d *document) decodeValue(path string, node *yaml.Node, v reflect.Value, l limits) {
	d.lines[path] = node.Line
	node = resolve(node)
	short := node.Kind == yaml.ScalarNode && isShorthand(v.Type())
	switch kind := v.Kind(); {
	case node.ShortTag() == "!!null":
		d.check(path, errNoValue)
	case kind == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.decodeValue(path, node, v.Elem(), l)
	case kind == reflect.Struct && short:
		d.decodeValue(path, node, v.Field(0), keysOf(v.Type())[0].limits)
	case kind == reflect.Slice && short:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		d.decodeValue(path, node, v.Index(0), l.ofItems())
	case kind == reflect.Struct && node.Kind == yaml.MappingNode:
		d.decodeStruct(path, node, v)
	case kind == reflect.Map && node.Kind == yaml.MappingNode:
		d.decodeMap(path, node, v, l)
	case kind == reflect.Slice && node.Kind == yaml.SequenceNode:
		if n := len(node.Content); d.check(path, l.checkItems(n)) && n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i, item := range node.Content {
				d.decodeValue(fmt.Sprintf("%s[%d]", path, i), item, v.Index(i), l.ofItems())
			}
		}
	case node.Kind == yaml.ScalarNode && kind != reflect.Slice && kind != reflect.Map: // whose formats are those of items and keys
		d.check(path, decodeScalar(node, v, l))
	default:
		d.check(path, wrongType(node, v, l))
	}
}

func (d *document) decodeStruct(path string, node *yaml.Node, v reflect.Value) {
	keys, found := keysOf(v.Type()), entries(node)
	for _, e := range found {
		i := slices.IndexFunc(keys, func(k key) bool { return k.name == e.key })
		if i < 0 {
			text := fmt.Sprintf("unknown key %q: %s", e.key, cli.WantOneOf(e.key, names(keys)))
			d.errors = append(d.errors, KeyError{File: d.name, Line: e.value.Line, Path: path, Text: text})
			continue
		}
		d.decodeValue(join(path, e.key), e.value, v.FieldByIndex(keys[i].field), keys[i].limits)
	}
	for _, k := range keys {
		if k.limits["required"] != nil && !slices.ContainsFunc(found, func(e entry) bool { return e.key == k.name }) {
			d.fail(join(path, k.name), "missing: want %s", wanted(v.FieldByIndex(k.field), k.limits))
		}
	}
}

// decodeMap decodes a mapping whose keys have the format of l.
func (d *document) decodeMap(path string, node *yaml.Node, v reflect.Value, l limits) {
	v.Set(reflect.MakeMap(v.Type()))
	seen := map[any]bool{}
	for _, e := range entries(node) {
		path := join(path, e.key)
		d.lines[path] = e.value.Line
		key, err := parseText(l.format(), e.key)
		if err == nil && seen[key] {
			err = errors.New("the same as another key")
		}
		if d.check(path, err) {
			seen[key] = true
			value := reflect.New(v.Type().Elem()).Elem()
			d.decodeValue(path, e.value, value, nil)
			v.SetMapIndex(reflect.ValueOf(e.key), value)
		}
	}
}

// decodeScalar decodes a scalar as it is written: 010 is not 8, and 31.10 is not 31.1.
func decodeScalar(node *yaml.Node, v reflect.Value, l limits) error {
	tag, text, format := node.ShortTag(), node.Value, l.format()
	if tag == "!!binary" || strings.ContainsFunc(text, unicode.IsControl) {
		return errors.New("not a single line of text")
	}
	switch kind := v.Kind(); {
	case kind == reflect.String || format != "":
		if tag == "!!bool" || format == "" && (tag == "!!int" || tag == "!!float") {
			return wrongType(node, v, l)
		}
		if err := l.checkText(text); err != nil {
			return err
		}
		value, err := parseText(format, text)
		if err == nil {
			v.Set(reflect.ValueOf(value).Convert(v.Type()))
		}
		return err
	case kind == reflect.Int:
		n, err := strconv.Atoi(text)
		if tag != "!!int" || err != nil || strconv.Itoa(n) != text {
			return wrongType(node, v, l)
		}
		v.SetInt(int64(n))
		return l.checkNumber(n)
	case kind == reflect.Bool:
		yes := slices.Contains([]string{"on", "yes"}, text) // YAML 1.1
		if !yes && tag != "!!bool" && !slices.Contains([]string{"off", "no"}, text) {
			return wrongType(node, v, l)
		}
		v.SetBool(yes || strings.EqualFold(text, "true"))
		return nil
	}
	return wrongType(node, v, l)
}

func wrongType(node *yaml.Node, v reflect.Value, l limits) error {
	got := node.Value
	switch {
	case node.Kind == yaml.MappingNode:
		got = "a mapping"
	case node.Kind == yaml.SequenceNode:
		got = "a list"
	case node.ShortTag() == "!!str":
		got = strconv.Quote(node.Value)
	}
	return fmt.Errorf("got %s, want %s", got, wanted(v, l))
}

// wanted returns a phrase for the values that v can have.
func wanted(v reflect.Value, l limits) string {
	if known := l.known(); known != nil {
		return cli.JoinOr(known)
	}
	switch v.Kind() {
	case reflect.Struct:
		return "a mapping with " + cli.JoinOr(names(keysOf(v.Type())))
	case reflect.Map:
		return "a mapping"
	case reflect.Slice:
		return "a list"
	case reflect.Int:
		return "a whole number"
	case reflect.Bool:
		return "true or false"
	}
	return "a text" + l.example()
}

// key is a key of a mapping: a field of a struct.
type key struct {
	name   string
	field  []int // index
	limits limits
}

// keysOf returns the keys of a struct type, with those of structs that are inlined.
func keysOf(t reflect.Type) (keys []key) {
	for i := range t.NumField() {
		field := t.Field(i)
		switch name, options, _ := strings.Cut(field.Tag.Get("yaml"), ","); {
		case options == "inline":
			for _, k := range keysOf(field.Type) {
				keys = append(keys, key{k.name, append([]int{i}, k.field...), k.limits})
			}
		case name != "-":
			keys = append(keys, key{name, []int{i}, limitsOf(field.Tag.Get("jsonschema"))})
		}
	}
	return keys
}

func names(keys []key) (names []string) {
	for _, k := range keys {
		names = append(names, k.name)
	}
	return names
}
