//go:build unix

package docs

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// code returns the Go code below directories of the repository, of tests or of all the rest,
// by its directory.
func code(t *testing.T, tests bool, roots ...string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, root := range roots {
		err := filepath.WalkDir(filepath.Join("..", root), func(name string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && filepath.Ext(name) == ".go" && strings.HasSuffix(name, "_test.go") == tests {
				found[strings.TrimPrefix(filepath.ToSlash(filepath.Dir(name)), "../")] += read(t, name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// Each line of the page on hostile pods has tests in testdata/hostile-pod.txt, and they
// exist: with package, function and row.
func TestHostilePodLinesHaveTheirTests(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{}
	for line := range strings.Lines(read(t, "testdata/hostile-pod.txt")) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		tests[fields[0]] = fields[1:]
	}
	packages := code(t, true, "internal", "nri", "ocispec")
	missing := func(test string) bool {
		dir, name, _ := strings.Cut(test, " ")
		name, row, _ := strings.Cut(name, "/")
		_, function, found := strings.Cut(packages[dir], "\nfunc "+name+"(")
		function, _, _ = strings.Cut(function, "\n}\n")
		return !found || row != "" && !regexp.MustCompile(`(?m)^\s*`+regexp.QuoteMeta(strconv.Quote(row))+`:`).MatchString(function)
	}
	tried, _, _ := strings.Cut(read(t, "hostile-pod.md"), "\n## What is not prevented\n")
	lines := regexp.MustCompile(`(?m)^(?:- |\| )(.+?)(?: \|.*)?$`).FindAllStringSubmatch(tried, -1)
	for _, line := range lines {
		if of := tests[line[1]]; line[1] != "what the author tries" && (len(of) == 0 || slices.ContainsFunc(of, missing)) {
			t.Errorf("%q has no test, or one that does not exist: %q", line[1], of)
		}
	}
	if len(lines) < 30 {
		t.Errorf("the page has %d lines about what an author tries", len(lines))
	}
}

// notOurs are the parts of messages that the kubelet and the scheduler write.
var notOurs = []string{"UnexpectedAdmissionError", "GetPreferredAllocation rpc failed", "Insufficient directx.microsoft.com/display"}

// Each message that the page on troubleshooting explains is one that the programs can
// write: each piece of it stands in their code.
func TestMessages(t *testing.T) {
	t.Parallel()
	_, table, _ := strings.Cut(read(t, "troubleshooting.md"), "<!-- messages: checked by TestMessages -->\n")
	table, _, _ = strings.Cut(table, "<!-- end -->\n")
	programs, count := "", 0
	for _, text := range code(t, false, "advertiser", "cmd", "discovery", "internal", "nri", "ocispec") {
		programs += strings.ReplaceAll(text, `\"`, `"`)
	}
	for row := range strings.SplitSeq(table, "\n") {
		message, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
		for _, match := range inlineCode.FindAllStringSubmatch(message, -1) {
			count++
			for piece := range strings.SplitSeq(match[1], "…") {
				if piece = strings.TrimSpace(piece); !slices.Contains(notOurs, piece) && !written(programs, piece) {
					t.Errorf("no program writes %q", piece)
				}
			}
		}
	}
	if count < 15 {
		t.Errorf("the page has %d messages only", count)
	}
}

// written reports whether a piece of a message stands in the code: as it is, or in up to
// three parts of at least 8 bytes, such as a text, a constant and the error behind it.
func written(code, piece string) bool {
	for range 3 {
		part := piece
		for part != "" && !strings.Contains(code, part) {
			part = strings.TrimRight(part[:strings.LastIndex(" "+part, " ")], " :")
		}
		if piece = strings.TrimLeft(piece[len(part):], " :"); piece == "" || len(part) < 8 {
			return piece == ""
		}
	}
	return false
}
