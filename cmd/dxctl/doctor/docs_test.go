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

//go:generate go test -run ^TestTroubleshootingPage$ . -update

var update = flag.Bool("update", false, "write the findings into docs/troubleshooting.md")

// The generated part of the page is between these lines.
const (
	pageBegin = "<!-- findings: made by `make generate` -->\n"
	pageEnd   = "<!-- end -->\n"
)

// TestTroubleshootingPage compares docs/troubleshooting.md with the findings.
func TestTroubleshootingPage(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the page has the messages of Linux")
	}
	file := filepath.Join("..", "..", "..", "docs", "troubleshooting.md")
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(page), pageBegin)
	old, after, closed := strings.Cut(rest, pageEnd)
	if !found || !closed {
		t.Fatalf("%s has no section from %q to %q", file, pageBegin, pageEnd)
	}
	findings := findingsPage()
	if *update {
		if err := os.WriteFile(file, []byte(before+pageBegin+findings+pageEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(old, findings); diff != "" {
		t.Errorf("%s is out of date; run 'make generate' (-page +findings):\n%s", file, diff)
	}
}

// findingsPage returns an example of each finding, with its remedy below it.
func findingsPage() string {
	var page strings.Builder
	page.WriteString("\n```text\n")
	written := map[string]bool{}
	files, causes := regexp.MustCompile(`(/[a-z.][\w.-]*){2,}`), regexp.MustCompile(`: (stat|query|list): .*`)
	for _, node := range brokenNodes() {
		f := Examine(node.facts).Findings[0]
		problem, fix := causes.ReplaceAllString(files.ReplaceAllString(f.Problem, "FILE"), ""), files.ReplaceAllString(f.Fix, "FILE")
		if !written[fix] {
			fmt.Fprintf(&page, "%s\n    %s\n", problem, fix)
		}
		written[fix] = true
	}
	return page.String() + "```\n\n"
}
