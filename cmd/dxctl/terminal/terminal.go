// Package terminal says what a command needs to know of where it prints, and
// prints tables that fit there.
package terminal

import (
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// Terminal is where a command prints. The zero value is a file or a pipe: text
// has its full width and no colour.
type Terminal struct {
	// Width is in columns; 0 means that there is no end of the line.
	Width int
	// Color tells that styles are shown.
	Color bool
}

// usualWidth is that of a terminal that does not tell, such as a serial line.
const usualWidth = 80

// Of returns what w is. Only a file can be a terminal. NO_COLOR, set to
// anything but "", keeps colours off (https://no-color.org), and so does
// TERM=dumb.
func Of(w io.Writer, getenv func(string) string) Terminal {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return Terminal{}
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil || width <= 0 {
		width = usualWidth
	}
	return Terminal{Width: width, Color: wantsColor(getenv) && showsColor(file)}
}

func wantsColor(getenv func(string) string) bool {
	return getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}

// Style is how a text looks on a terminal with colours.
type Style string

// The styles, by their ECMA-48 parameters (Select Graphic Rendition).
// https://learn.microsoft.com/windows/console/console-virtual-terminal-sequences#text-formatting
const (
	Plain Style = ""
	Bold  Style = "1"
	Dim   Style = "2"
	// Bad is red: something is wrong.
	Bad Style = "31"
	// Good is green.
	Good Style = "32"
	// Warn is yellow: something is not as one may expect.
	Warn Style = "33"
)

// Paint returns text, which is to be [Printable], in a style.
func (t Terminal) Paint(style Style, text string) string {
	if !t.Color || style == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(style) + "m" + text + "\x1b[0m"
}

// Printable returns text as one line that can do a terminal no harm: what
// drivers and manifests tell may hold control characters, which move the
// cursor or worse, and marks that reverse the order of letters. White space
// becomes a space, anything else that is not printed "�".
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return utf8.RuneError
		}
		return r
	}, text)
}
