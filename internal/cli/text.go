package cli

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable returns text as one line without control characters, which drivers and
// foreign files may contain: they move the cursor, or worse.
func Printable(text string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case unicode.IsSpace(c):
			return ' '
		case !unicode.IsPrint(c):
			return utf8.RuneError
		}
		return c
	}, text)
}
