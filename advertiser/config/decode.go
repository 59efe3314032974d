package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

var errNoValue = errors.New("no value: set one, or remove the key")

// decode decodes the document into target, a pointer to a [Configuration] or an [Inventory].
func (d *yamlDocument) decode(target any) {
	d.decodeValue("", d.root, reflect.ValueOf(target).Elem(), limits{})
}

// decodeValue decodes the value of the key at path into v. It adds an error for each key below path
// that is unknown or missing, and for each value that does not have the type of its field or is
// outside of the limits in the field's jsonschema tag.
//
// No library does all this: yaml reports all errors, but with the names of Go's fields and types
// and not of keys. goccy/go-yaml (v1.19.2) and sigs.k8s.io/yaml (v1.6.0) end at the first error.
func (d *yamlDocument) decodeValue(path string, node *yaml.Node, v reflect.Value, l limits) {
	d.lines[path] = node.Line
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	isShorthand := l.shorthand && node.Kind == yaml.ScalarNode
	kind := v.Kind()
	switch {
	case node.ShortTag() == "!!null":
		d.check(path, errNoValue)
	case kind == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.decodeValue(path, node, v.Elem(), l)
	case kind == reflect.Struct && isShorthand:
		d.decodeValue(path, node, v.Field(0), keysOf(v.Type())[0].limits)
	case kind == reflect.Slice && isShorthand && v.Type().Elem().Kind() != reflect.Struct:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		d.decodeValue(path, node, v.Index(0), l)
	case kind == reflect.Struct && node.Kind == yaml.MappingNode:
		d.decodeStruct(path, node, v)
	case kind == reflect.Map && node.Kind == yaml.MappingNode:
		d.decodeMap(path, node, v, l)
	case kind == reflect.Slice && node.Kind == yaml.SequenceNode:
		if n := len(node.Content); d.check(path, l.checkItems(n)) && n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i, item := range node.Content {
				d.decodeValue(fmt.Sprintf("%s[%d]", path, i), item, v.Index(i), l)
			}
		}
	case node.Kind == yaml.ScalarNode && kind != reflect.Slice && kind != reflect.Map:
		d.check(path, decodeScalar(node, v, l))
	default:
		d.check(path, wrongType(node, v, l))
	}
}

func (d *yamlDocument) decodeStruct(path string, mapping *yaml.Node, v reflect.Value) {
	values, keys := entries(mapping), keysOf(v.Type())
	for _, k := range keys {
		path, field, value := join(path, k.name), v.FieldByIndex(k.index), values[k.name]
		delete(values, k.name)
		flag, isSet := d.flags[path]
		switch {
		case isSet:
			field.Set(flag)
		case value != nil:
			d.decodeValue(path, value, field, k.limits)
		case k.limits.required:
			d.errorf(path, "missing: want %s", validValues(field, k.limits))
		case field.Kind() == reflect.Struct: // The flags may have values for keys below it.
			d.decodeStruct(path, &yaml.Node{}, field)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		d.add(values[name].Line, path, fmt.Sprintf("unknown key %q: want %s", name, strings.Join(names(keys), ", ")))
	}
}

// decodeMap decodes a mapping whose keys have the format of l. The paths of the values have the
// decoded keys.
func (d *yamlDocument) decodeMap(path string, mapping *yaml.Node, v reflect.Value, l limits) {
	v.Set(reflect.MakeMap(v.Type()))
	values, names := entries(mapping), map[any]string{}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		d.lines[join(path, name)] = values[name].Line
		key, err := parseFormat(l.format, name)
		if other := names[key]; err == nil && other != "" {
			err = fmt.Errorf("the same as %s: remove one of them", other)
		}
		if d.check(join(path, name), err) {
			names[key] = name
			value := reflect.New(v.Type().Elem()).Elem()
			d.decodeValue(join(path, fmt.Sprint(key)), values[name], value, limits{})
			v.SetMapIndex(reflect.ValueOf(key), value)
		}
	}
}

// decodeScalar decodes a scalar as it is written: 010 is not 8, and 31.10 is not 31.1.
func decodeScalar(node *yaml.Node, v reflect.Value, l limits) error {
	tag, text := node.ShortTag(), node.Value
	if tag == "!!binary" || strings.ContainsFunc(text, unicode.IsControl) {
		return errors.New("not a single line of text")
	}
	kind := v.Kind()
	switch {
	case kind == reflect.String || l.format != "":
		if tag == "!!bool" || l.format == "" && (tag == "!!int" || tag == "!!float") {
			return wrongType(node, v, l)
		}
		if err := l.checkString(text); err != nil {
			return err
		}
		value, err := parseFormat(l.format, text)
		if err != nil {
			return err
		}
		v.Set(reflect.ValueOf(value).Convert(v.Type()))
		return nil
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
	return fmt.Errorf("got %s, want %s", got, validValues(v, l))
}

// validValues returns a phrase for the values that v can have.
func validValues(v reflect.Value, l limits) string {
	if values := l.values(); values != nil {
		return strings.Join(values, ", ")
	}
	switch v.Kind() {
	case reflect.Struct:
		return "a mapping with " + strings.Join(names(keysOf(v.Type())), ", ")
	case reflect.Map:
		return "a mapping"
	case reflect.Slice:
		return "a list"
	case reflect.Int:
		return "a whole number"
	case reflect.Bool:
		return "true or false"
	}
	return "a string" + l.exampleSuffix()
}

// key is a key of a mapping: a field of a struct.
type key struct {
	name   string
	index  []int // of the field
	limits limits
}

// keysOf returns the keys of a struct type, with those of structs that are inlined.
func keysOf(t reflect.Type) (keys []key) {
	for _, field := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		if name != "" && name != "-" { // An inlined struct has no name.
			keys = append(keys, key{name, field.Index, limitsOf(field.Tag)})
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
