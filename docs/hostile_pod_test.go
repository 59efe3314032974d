// Package docs has the tests of what the pages say.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Each line of the page on hostile pods names the tests that hold it, and they
// exist.
func TestHostilePodLinesHaveTheirTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("hostile-pod.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([a-z0-9/]+) ((?:Test|Fuzz)[A-Za-z0-9]+)(?:/([^`]+))?`")
	lines := 0
	for number, line := range strings.Split(string(page), "\n") {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| what the author tries |") {
			continue
		}
		lines++
		tests := named.FindAllStringSubmatch(line, -1)
		if len(tests) == 0 {
			t.Errorf("line %d names no test: %s", number+1, line)
		}
		for _, test := range tests {
			if !exists(t, filepath.Join("..", test[1]), test[2], test[3]) {
				t.Errorf("line %d: there is no %s", number+1, test[0])
			}
		}
	}
	if lines < 30 {
		t.Errorf("the page has %d lines about what an author tries", lines)
	}
}

// exists reports whether a package has a test, with a row of that name if one is
// given. Rows that are commented out do not count.
func exists(t *testing.T, dir, test, row string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, body, found := strings.Cut(string(data), "\nfunc "+test+"(")
		if !found {
			continue
		}
		body, _, _ = strings.Cut(body, "\n}\n")
		for line := range strings.Lines(body) {
			line = strings.TrimSpace(line)
			if row == "" || strings.Contains(line, strconv.Quote(row)+":") && !strings.HasPrefix(line, "//") {
				return true
			}
		}
	}
	return false
}
