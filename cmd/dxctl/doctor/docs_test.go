package doctor

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

//go:generate go test -run Page$ . -update

var update = flag.Bool("update", false, "write the findings into docs/troubleshooting.md")

// TestTroubleshootingPage compares docs/troubleshooting.md with the findings.
func TestTroubleshootingPage(t *testing.T) {
	t.Parallel()
	checkPage(t, "troubleshooting.md", "findings", findingsPage())
}

// TestHardwarePage compares docs/hardware.md with the claims.
func TestHardwarePage(t *testing.T) {
	t.Parallel()
	var page strings.Builder
	for _, c := range Claims(Facts{}, nil) {
		fmt.Fprintf(&page, "\n- %s", c.Claim)
	}
	checkPage(t, "hardware.md", "claims", page.String()+"\n\n")
}

// checkPage compares the generated part of a page with want.
func checkPage(t *testing.T, name, part, want string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the page has the messages of Linux")
	}
	begin, end := "<!-- "+part+": made by `make generate` -->\n", "<!-- end -->\n"
	file := filepath.Join("..", "..", "..", "docs", name)
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(page), begin)
	old, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no section from %q to %q", file, begin, end)
	}
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(old, want); diff != "" {
		t.Errorf("%s is out of date; run 'make generate' (-page +%s):\n%s", file, part, diff)
	}
}

// findingsPage returns an example of each finding, one for each remedy.
func findingsPage() string {
	var page strings.Builder
	page.WriteString("\n```text\n")
	written := map[string]bool{}
	files := regexp.MustCompile(`(/[a-z.][\w.-]*){2,}`)
	for _, node := range brokenNodes() {
		f := Examine(node.facts).Findings[0]
		problem, fix := files.ReplaceAllString(f.Problem, "FILE"), files.ReplaceAllString(f.Fix, "FILE")
		// The cause differs.
		if short, _, _ := strings.Cut(problem, ": "); strings.Count(short, " ") > 2 {
			problem = short
		}
		if !written[fix] && !written[problem] {
			page.WriteString(problem + "\n")
		}
		written[fix], written[problem] = true, true
	}
	return page.String() + "```\n\n"
}
