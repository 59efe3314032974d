package show

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/rogpeppe/go-internal/diff"
)

// diffJSON returns a unified diff of the indented forms of two JSON documents, "" if they are the
// same.
func diffJSON(name string, before, after []byte) (string, error) {
	old, oldErr := indentJSON(before)
	edited, editedErr := indentJSON(after)
	return string(diff.Diff(name, old, name, edited)), errors.Join(oldErr, editedErr)
}

// indentJSON returns the JSON in data with indentation and sorted keys. Numbers are preserved as
// written, and the ampersands of instance IDs are not escaped.
func indentJSON(data []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return text.Bytes(), err
}
