package strictyaml

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// maxProblems is how many problems of one document are told in full.
const maxProblems = 50

// Problem is one thing that is wrong with a document.
type Problem struct {
	// File is the document's name, [Options.Name].
	File string
	// Line counts from 1.
	Line int
	// Path leads to the value, for example devices[0].driver.version. Empty
	// for the document as a whole.
	Path string
	// Text says what is wrong, and after a semicolon what to write instead.
	Text string
}

func (p Problem) Error() string {
	if p.Path == "" {
		return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Text)
	}
	return fmt.Sprintf("%s:%d: %s: %s", p.File, p.Line, p.Path, p.Text)
}

// Problems is everything that is wrong with a document, in the order of lines,
// never empty.
type Problems []Problem

// Error returns one line for each problem; after the first fifty it only
// counts.
func (ps Problems) Error() string {
	var b strings.Builder
	for i, p := range ps {
		if i == maxProblems {
			fmt.Fprintf(&b, "\n%s: and %d more", p.File, len(ps)-i)
			break
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(p.Error())
	}
	return b.String()
}

// Unwrap gives errors.As each [Problem].
func (ps Problems) Unwrap() []error {
	errs := make([]error, len(ps))
	for i, p := range ps {
		errs[i] = p
	}
	return errs
}

func (ps Problems) sort() {
	slices.SortStableFunc(ps, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
}
