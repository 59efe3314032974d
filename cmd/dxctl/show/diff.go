package show

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
)

// diffJSON returns a unified diff of the pretty forms of two JSON documents, "" if they are the
// same.
func diffJSON(name string, before, after []byte) (string, error) {
	old, oldErr := prettyJSON(before)
	edited, editedErr := prettyJSON(after)
	return string(diff.Diff(name, old, name, edited)), errors.Join(oldErr, editedErr)
}

// prettyJSON returns the JSON in data with sorted keys and each element of a list on
// its own line. Numbers are preserved as written.
func prettyJSON(data []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return []byte(pretty(v, "") + "\n"), nil
}

func pretty(v any, indent string) string {
	inner := "\n" + indent + "  "
	brackets := "[]"
	var elements []string
	switch v := v.(type) {
	case map[string]any:
		brackets = "{}"
		for _, key := range slices.Sorted(maps.Keys(v)) {
			elements = append(elements, compact(key)+": "+pretty(v[key], indent+"  "))
		}
	case []any:
		for _, element := range v {
			elements = append(elements, compact(element))
		}
	}
	if len(elements) == 0 {
		return compact(v)
	}
	return brackets[:1] + inner + strings.Join(elements, ","+inner) + "\n" + indent + brackets[1:]
}

// compact returns v on one line, without escaping the ampersands of instance IDs. Encoding cannot
// fail, because v was decoded from JSON.
func compact(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
	return strings.TrimSuffix(b.String(), "\n")
}
