package pnp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// The REG_ types that hold text.
const (
	regString      = 1 // REG_SZ
	regMultiString = 7 // REG_MULTI_SZ
)

var errNotText = errors.New("is not valid UTF-16")

// text returns the strings of a REG_SZ or REG_MULTI_SZ value, up to the first empty
// one. The registry does not enforce terminators, so they may be missing.
func (v Value) text() ([]string, error) {
	if v.Type != regString && v.Type != regMultiString {
		return nil, fmt.Errorf("has registry type %d, want REG_SZ (%d) or REG_MULTI_SZ (%d)", v.Type, regString, regMultiString)
	}
	if len(v.Data)%2 != 0 {
		return nil, fmt.Errorf("has %d bytes, want an even number", len(v.Data))
	}
	units := make([]uint16, len(v.Data)/2)
	for i := range units {
		units[i] = binary.LittleEndian.Uint16(v.Data[2*i:])
	}
	var list []string
	for len(units) > 0 && units[0] != 0 {
		end := slices.Index(units, 0)
		if end < 0 {
			end = len(units)
		}
		text := string(utf16.Decode(units[:end]))
		// A replacement character would name another file.
		if strings.ContainsRune(text, utf8.RuneError) {
			return nil, errNotText
		}
		list = append(list, text)
		if v.Type == regString || end == len(units) {
			break
		}
		units = units[end+1:]
	}
	return list, nil
}

// maxQuoted is the number of characters of a quoted text.
const maxQuoted = 80

// quote quotes and shortens text of unknown content.
func quote(text string) string {
	if utf8.RuneCountInString(text) > maxQuoted {
		text = string([]rune(text)[:maxQuoted]) + "…"
	}
	return strconv.Quote(text)
}

func quoteAll(list []string) string {
	quoted := make([]string, len(list))
	for i, text := range list {
		quoted[i] = quote(text)
	}
	return strings.Join(quoted, ", ")
}

// oneLine returns text without control characters and line breaks.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "\uFFFD"), func(r rune) bool {
		return unicode.IsControl(r) || r == '\u2028' || r == '\u2029'
	}), " ")
}

// display returns the text of a property. An unresolved text follows its reference
// to the driver's INF: `@oem12.inf,%nvidia%;NVIDIA`.
func display(text string) string {
	if strings.HasPrefix(text, "@") {
		if i := strings.LastIndexByte(text, ';'); i >= 0 {
			text = text[i+1:]
		}
	}
	return strings.TrimSpace(oneLine(text))
}
