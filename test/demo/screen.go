package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// screen prints the story, with colour on a terminal that wants it.
type screen struct {
	w      io.Writer
	colour bool
	step   int
}

func newScreen(f *os.File) *screen {
	info, err := f.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0
	return &screen{w: f, colour: terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

const (
	bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
	cyan  = "36"
)

func (s *screen) paint(style, text string) string {
	if !s.colour {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

func (s *screen) title(format string, args ...any) {
	s.step++
	fmt.Fprintf(s.w, "\n%s\n", s.paint(bold, fmt.Sprintf("%d. ", s.step)+fmt.Sprintf(format, args...)))
}

func (s *screen) say(format string, args ...any) {
	fmt.Fprintf(s.w, "   %s\n", fmt.Sprintf(format, args...))
}

// who prints what one of the parties does.
func (s *screen) who(name, format string, args ...any) {
	fmt.Fprintf(s.w, "   %s %s\n", s.paint(cyan, fmt.Sprintf("%-11s", name)), fmt.Sprintf(format, args...))
}

func (s *screen) refused(text string) {
	fmt.Fprintf(s.w, "   %s %s\n", s.paint(red, fmt.Sprintf("%-11s", "refused")), wrap(text, 92, "               "))
}

func (s *screen) diff(text string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "+"):
			line = s.paint(green, line)
		case strings.HasPrefix(line, "-"):
			line = s.paint(red, line)
		case strings.HasPrefix(line, "@@"):
			line = s.paint(dim, line)
		}
		fmt.Fprintf(s.w, "     %s\n", line)
	}
}

// wrap breaks text at spaces into lines of about width, each but the first
// behind indent.
func wrap(text string, width int, indent string) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		if i > 0 {
			if column+1+len(word) > width {
				b.WriteString("\n" + indent)
				column = 0
			} else {
				b.WriteByte(' ')
				column++
			}
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}
