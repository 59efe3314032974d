package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
)

// jsonDiff returns a unified diff of the pretty forms of two JSON documents, "" if
// they are the same.
func jsonDiff(name string, before, after []byte) (string, error) {
	old, err := prettyJSON(before)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	edited, err := prettyJSON(after)
	if err != nil {
		return "", fmt.Errorf("%s, changed: %w", name, err)
	}
	return textDiff(name, []byte(old), []byte(edited)), nil
}

// textDiff returns a unified diff of two texts, "" if they are the same.
func textDiff(name string, before, after []byte) string {
	_, hunks, _ := strings.Cut(string(diff.Diff(name, before, name, after)), "\n") // "diff NAME NAME"
	return hunks
}

// prettyJSON returns the JSON in data with sorted keys and each element of a list on
// its own line. Numbers are preserved as written.
func prettyJSON(data []byte) (string, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return "", err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return "", errors.New("data after the JSON value")
	}
	var b strings.Builder
	if err := writePretty(&b, v, ""); err != nil {
		return "", err
	}
	return b.String() + "\n", nil
}

func writePretty(b *strings.Builder, v any, indent string) error {
	object, _ := v.(map[string]any)
	list, _ := v.([]any)
	if len(object)+len(list) == 0 {
		return writeCompact(b, v)
	}
	brackets, separator := "[]", "\n"+indent+"  "
	if len(object) > 0 {
		brackets = "{}"
	}
	b.WriteByte(brackets[0])
	for _, key := range slices.Sorted(maps.Keys(object)) {
		b.WriteString(separator)
		separator = ",\n" + indent + "  "
		if err := writeCompact(b, key); err != nil {
			return err
		}
		b.WriteString(": ")
		if err := writePretty(b, object[key], indent+"  "); err != nil {
			return err
		}
	}
	for _, element := range list {
		b.WriteString(separator)
		separator = ",\n" + indent + "  "
		if err := writeCompact(b, element); err != nil {
			return err
		}
	}
	b.WriteString("\n" + indent + brackets[1:])
	return nil
}

// writeCompact writes v on one line, without escaping the ampersands of instance IDs.
func writeCompact(b *strings.Builder, v any) error {
	var compact bytes.Buffer
	e := json.NewEncoder(&compact)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	b.Write(bytes.TrimSuffix(compact.Bytes(), []byte("\n")))
	return err
}
