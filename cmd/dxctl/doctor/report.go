package doctor

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Result is the outcome of an examination.
type Result string

// The results.
const (
	Sound    Result = "sound"
	Findings Result = "findings"
	NotKnown Result = "unknown"
)

// The values of [Report.Role].
const (
	RoleKubernetes = "kubernetes"
	RoleStandalone = "standalone"
)

// Report is the result of an examination. The names of its fields are stable.
type Report struct {
	Version string `json:"version"`
	OS      string `json:"os"`
	// Result is "sound", "findings" or "unknown".
	Result Result `json:"result"`
	// Role is what the node is used for.
	Role string `json:"role"`
	// ServedBy are the components that add GPUs to containers ("nri", "shim" or
	// "kubelet"), none if nothing is set up.
	ServedBy []string `json:"servedBy"`
	// Notes are not problems, and may explain one.
	Notes    []string  `json:"notes,omitempty"`
	Findings []Finding `json:"findings"`
}

// result returns the outcome: problems take precedence over what is unknown.
func result(findings []Finding) Result {
	switch {
	case len(findings) == 0:
		return Sound
	case slices.ContainsFunc(findings, func(f Finding) bool { return f.Severity == Problem }):
		return Findings
	}
	return NotKnown
}

// Print writes the report as text: a block for each finding, and a summary.
func (r Report) Print(w io.Writer) error {
	var text strings.Builder
	problems := 0
	for _, f := range r.Findings {
		if f.Severity == Problem {
			problems++
		}
		fmt.Fprintf(&text, "%s %s", f.Severity, f.Check)
		if f.Object != "" {
			fmt.Fprintf(&text, ": %s", Printable(f.Object))
		}
		fmt.Fprintf(&text, "\n  what  %s\n  why   %s\n  fix   %s\n\n", Printable(f.Problem), Printable(f.Why), Printable(f.Fix))
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&text, "note  %s\n", Printable(note))
	}
	result := "no problems"
	if len(r.Findings) > 0 {
		result = fmt.Sprintf("%d problem(s), %d unknown", problems, len(r.Findings)-problems)
	}
	node := fmt.Sprintf("a %s node that is not set up", r.Role)
	if len(r.ServedBy) > 0 {
		node = fmt.Sprintf("a %s node served by %s", r.Role, strings.Join(r.ServedBy, " and "))
	}
	fmt.Fprintf(&text, "%s: %s\n", node, result)
	_, err := io.WriteString(w, text.String())
	return err
}

// Printable returns text as one line without control characters, which drivers and
// files of others may contain: they move the cursor, or worse.
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
