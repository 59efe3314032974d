package doctor

import (
	"fmt"
	"io"
	"strings"

	"github.com/directx-nri/directx-nri/internal/errlog"
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
	// Role is what the node is used for.
	Role string `json:"role"`
	// ServedBy are the components that add GPUs to containers ("nri", "shim" or
	// "kubelet"), none if nothing is set up.
	ServedBy []string  `json:"servedBy"`
	Findings []Finding `json:"findings"`
}

// Problems returns the number of findings that are problems.
func (r Report) Problems() (n int) {
	for _, f := range r.Findings {
		if f.Severity == Problem {
			n++
		}
	}
	return n
}

// Print writes the report as text: a block for each finding, and a summary.
func (r Report) Print(w io.Writer) error {
	var text strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&text, "%s %s", f.Severity, f.Check)
		if f.Object != "" {
			fmt.Fprintf(&text, ": %s", errlog.OneLine(f.Object))
		}
		fmt.Fprintf(&text, "\n  what  %s\n  why   %s\n  fix   %s\n\n", errlog.OneLine(f.Problem), errlog.OneLine(f.Why), errlog.OneLine(f.Fix))
	}
	result := "no problems"
	if len(r.Findings) > 0 {
		problems := r.Problems()
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
