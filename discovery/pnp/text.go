package pnp

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxQuoted is how many characters of a text from the registry a message has.
const maxQuoted = 80

// quote returns text from elsewhere as it can stand in a message.
func quote(text string) string {
	if utf8.RuneCountInString(text) > maxQuoted {
		text = string([]rune(text)[:maxQuoted]) + "…"
	}
	return strconv.Quote(text)
}

// oneLine returns text for people as one line.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "\uFFFD"), func(r rune) bool {
		return unicode.IsControl(r) || r == '\u2028' || r == '\u2029'
	}), " ")
}

// display returns a property for people. An unresolved one has the place of the
// text in the driver's INF before the text: `@oem12.inf,%nvidia%;NVIDIA`.
func display(text string) string {
	if strings.HasPrefix(text, "@") {
		if i := strings.LastIndexByte(text, ';'); i >= 0 {
			text = text[i+1:]
		}
	}
	return strings.TrimSpace(oneLine(text))
}
