// Package specdiff shows people an OCI runtime spec, and what was changed in it.
package specdiff

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/aymanbagabas/go-udiff"
)

// Unified returns the difference between two JSON documents as a unified diff
// of their [Pretty] forms, "" when those are the same. The names stand in the
// diff's head.
func Unified(oldName, newName string, before, after []byte) (string, error) {
	old, err := Pretty(before)
	if err != nil {
		return "", fmt.Errorf("%s: %w", oldName, err)
	}
	edited, err := Pretty(after)
	if err != nil {
		return "", fmt.Errorf("%s: %w", newName, err)
	}
	return Text(oldName, newName, old, edited), nil
}

// Text returns the difference between two texts as a unified diff, "" when they
// are the same.
func Text(oldName, newName, before, after string) string {
	return renumber(udiff.Unified(oldName, newName, before, after))
}

var hunk = regexp.MustCompile(`(?m)^@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@$`)

// renumber corrects the line at which each hunk begins in the new document:
// udiff forgets the lines between edits that share a hunk.
func renumber(diff string) string {
	shift := 0
	return hunk.ReplaceAllStringFunc(diff, func(head string) string {
		number := hunk.FindStringSubmatch(head)
		lines := func(count string) int {
			if count == "" {
				return 1
			}
			n, _ := strconv.Atoi(count) // The expression takes digits alone.
			return n
		}
		begin, before, after := lines(number[1]), lines(number[2]), lines(number[3])
		now := begin + shift
		// A side without lines is named by the line before.
		if before == 0 {
			now++
		}
		if after == 0 {
			now--
		}
		fixed := fmt.Sprintf("@@ -%d,%d +%d,%d @@", begin, before, now, after)
		shift += after - before
		return fixed
	})
}

// Pretty returns the JSON in data with its keys in order, so that only edits
// differ, and with each element of a list on a line of its own. Numbers stay as
// they are written.
func Pretty(data []byte) (string, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return "", err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return "", errors.New("something follows the end of the JSON")
	}
	var b strings.Builder
	if err := write(&b, v, ""); err != nil {
		return "", err
	}
	return b.String() + "\n", nil
}

func write(b *strings.Builder, v any, indent string) error {
	object, ok := v.(map[string]any)
	list, isList := v.([]any)
	switch {
	case ok && len(object) > 0:
		b.WriteString("{\n")
		for i, key := range slices.Sorted(maps.Keys(object)) {
			if i > 0 {
				b.WriteString(",\n")
			}
			b.WriteString(indent + "  ")
			if err := writeCompact(b, key); err != nil {
				return err
			}
			b.WriteString(": ")
			if err := write(b, object[key], indent+"  "); err != nil {
				return err
			}
		}
		b.WriteString("\n" + indent + "}")
		return nil
	case isList && len(list) > 0:
		b.WriteString("[\n")
		for i, element := range list {
			if i > 0 {
				b.WriteString(",\n")
			}
			b.WriteString(indent + "  ")
			if err := writeCompact(b, element); err != nil {
				return err
			}
		}
		b.WriteString("\n" + indent + "]")
		return nil
	}
	return writeCompact(b, v)
}

// writeCompact writes v on one line, with the ampersands of instance IDs as
// they are.
func writeCompact(b *strings.Builder, v any) error {
	var compact bytes.Buffer
	e := json.NewEncoder(&compact)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	b.Write(bytes.TrimSuffix(compact.Bytes(), []byte("\n")))
	return err
}
