package doctor

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Verdict is the result of an examination.
type Verdict struct {
	Role Role
	// ServedBy are the components that add GPUs to containers, none if nothing is
	// set up.
	ServedBy []ServedBy
	// Notes are not problems, and may explain one.
	Notes []string
	// Checks are the names of the performed checks.
	Checks   []string
	Findings []Finding
}

// Result is the outcome of an examination.
type Result string

// The results.
const (
	Sound    Result = "sound"
	Findings Result = "findings"
	NotKnown Result = "unknown"
)

// Result returns the outcome: problems take precedence over what is unknown.
func (v Verdict) Result() Result {
	switch {
	case len(v.Findings) == 0:
		return Sound
	case slices.ContainsFunc(v.Findings, func(f Finding) bool { return f.Severity == Problem }):
		return Findings
	}
	return NotKnown
}

// Report is the JSON form of a verdict. The names of its fields are stable.
type Report struct {
	Version string `json:"version"`
	OS      string `json:"os"`
	// Result is "sound", "findings" or "unknown".
	Result   Result     `json:"result"`
	Role     Role       `json:"role"`
	ServedBy []ServedBy `json:"servedBy"`
	Checks   []string   `json:"checks"`
	Notes    []string   `json:"notes,omitempty"`
	Findings []Finding  `json:"findings"`
}

// Report returns the JSON form of the verdict on f.
func (v Verdict) Report(f Facts) Report {
	return Report{
		Version: f.Version, OS: f.OS, Result: v.Result(), Role: v.Role, ServedBy: append([]ServedBy{}, v.ServedBy...),
		Checks: v.Checks, Notes: v.Notes, Findings: v.Findings,
	}
}

// Print writes the verdict as text: a block for each finding, and a summary.
func (v Verdict) Print(w io.Writer) error {
	var text strings.Builder
	problems := 0
	for _, f := range v.Findings {
		if f.Severity == Problem {
			problems++
		}
		fmt.Fprintf(&text, "%s %s", f.Severity, f.Check)
		if f.Object != "" {
			fmt.Fprintf(&text, ": %s", Printable(f.Object))
		}
		fmt.Fprintf(&text, "\n  what  %s\n  why   %s\n  fix   %s\n\n", Printable(f.Problem), Printable(f.Why), Printable(f.Fix))
	}
	for _, note := range v.Notes {
		fmt.Fprintf(&text, "note  %s\n", Printable(note))
	}
	result := "no problems"
	if len(v.Findings) > 0 {
		result = fmt.Sprintf("%d problem(s), %d unknown", problems, len(v.Findings)-problems)
	}
	fmt.Fprintf(&text, "%s in %d checks of %s\n", result, len(v.Checks), v.node())
	_, err := io.WriteString(w, text.String())
	return err
}

func (v Verdict) node() string {
	node := "a Kubernetes node"
	if v.Role == RoleStandalone {
		node = "a node without Kubernetes"
	}
	if len(v.ServedBy) == 0 {
		return node + " that is not set up"
	}
	names := map[ServedBy]string{ServedByKubelet: "the kubelet", ServedByNRI: "the NRI plugin", ServedByShim: "the runtime shim"}
	var by []string
	for _, s := range v.ServedBy {
		by = append(by, names[s])
	}
	return node + " served by " + strings.Join(by, " and ")
}

// Printable returns text as one line without control characters, which drivers and
// files of others may contain: they move the cursor, or worse.
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
