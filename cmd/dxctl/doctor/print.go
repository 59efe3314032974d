package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"directx-nri/cmd/dxctl/terminal"
)

// Report is a verdict as it is written for programs. The names of its fields
// stay.
type Report struct {
	// Version is that of dxctl.
	Version string `json:"version"`
	OS      string `json:"os"`
	// Result is "sound", "findings" or "unknown".
	Result   Result     `json:"result"`
	Role     Role       `json:"role"`
	ServedBy []ServedBy `json:"servedBy"`
	// Checks are the names of what was looked at.
	Checks []string `json:"checks"`
	// Notes tell what is no fault.
	Notes    []string  `json:"notes,omitempty"`
	Findings []Finding `json:"findings"`
}

// Report returns the verdict as it is written for programs.
func (v Verdict) Report(f Facts) Report {
	served := v.ServedBy
	if served == nil {
		served = []ServedBy{}
	}
	return Report{Version: f.Version, OS: f.OS, Result: v.Result(), Role: v.Role, ServedBy: served, Checks: v.Checks, Notes: v.Notes, Findings: v.Findings}
}

// PrintJSON writes the report as JSON.
func (r Report) PrintJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(r)
}

// Print writes the verdict for a person: a block for each finding, and a line
// that sums them up.
func (v Verdict) Print(w io.Writer, to terminal.Terminal) error {
	var text strings.Builder
	for _, f := range v.Findings {
		style := terminal.Bad
		if f.Severity == Unknown {
			style = terminal.Warn
		}
		fmt.Fprintf(&text, "%s %s", to.Paint(style, string(f.Severity)), to.Paint(terminal.Bold, f.Check))
		if f.Object != "" {
			fmt.Fprintf(&text, ": %s", terminal.Printable(f.Object))
		}
		for _, line := range []struct{ name, text string }{{"what", f.Problem}, {"why", f.Why}, {"do", f.Fix}} {
			fmt.Fprintf(&text, "\n  %-5s %s", line.name, terminal.Printable(line.text))
		}
		text.WriteString("\n\n")
	}
	for _, note := range v.Notes {
		fmt.Fprintf(&text, "%s  %s\n", to.Paint(terminal.Dim, "note"), terminal.Printable(note))
	}
	fmt.Fprintf(&text, "%s\n", v.summary())
	_, err := io.WriteString(w, text.String())
	return err
}

func (v Verdict) summary() string {
	problems := 0
	for _, f := range v.Findings {
		if f.Severity == Problem {
			problems++
		}
	}
	result := "sound: no finding"
	if len(v.Findings) > 0 {
		result = fmt.Sprintf("%d wrong, %d not known", problems, len(v.Findings)-problems)
	}
	return fmt.Sprintf("%s in %d checks; taken for %s", result, len(v.Checks), v.node())
}

// node says for what the node was taken.
func (v Verdict) node() string {
	what := "a node of Kubernetes"
	if v.Role == RoleStandalone {
		what = "a node without Kubernetes"
	}
	var by []string
	for _, s := range v.ServedBy {
		by = append(by, map[ServedBy]string{ServedByKubelet: "the kubelet", ServedByNRI: "the NRI plugin", ServedByShim: "the runtime shim"}[s])
	}
	if len(by) == 0 {
		return what + " on which nothing is set up"
	}
	return what + " with GPUs by " + strings.Join(by, " and ")
}
