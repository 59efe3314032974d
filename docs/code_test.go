//go:build unix

package docs

import (
	"go/scanner"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// Each line of the page on hostile pods has tests in testdata/hostile-pod.txt, and they
// exist: with package, function and row.
func TestHostilePodLinesHaveTheirTests(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{}
	for line := range strings.Lines(read(t, "testdata/hostile-pod.txt")) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		tests[fields[0]] = fields[1:]
	}
	missing := func(test string) bool {
		dir, name, _ := strings.Cut(test, " ")
		name, row, _ := strings.Cut(name, "/")
		_, source, found := strings.Cut(code(t, true, dir+"/*.go"), "\nfunc "+name+"(")
		source, _, _ = strings.Cut(source, "\n}\n")
		return !found || row != "" && !strings.Contains(source, strconv.Quote(row)+":")
	}
	tried, _, _ := strings.Cut(read(t, "hostile-pod.md"), "\n## What is not prevented\n")
	lines := regexp.MustCompile(`(?m)^- (.+?)(?:: .*)?$`).FindAllStringSubmatch(tried, -1)
	for _, line := range lines {
		if of := tests[line[1]]; len(of) == 0 || slices.ContainsFunc(of, missing) {
			t.Errorf("%q has no test, or one that does not exist: %q", line[1], of)
		}
	}
	if len(lines) < 30 {
		t.Errorf("the page has %d lines about what an author tries", len(lines))
	}
}

// code returns the Go files that match patterns below the repository's root: tests, or all others.
func code(t *testing.T, tests bool, patterns ...string) (text string) {
	t.Helper()
	for _, pattern := range patterns {
		files, err := filepath.Glob("../" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") == tests {
				text += read(t, file)
			}
		}
	}
	return text
}

// The pages for contributors name code that exists, as package.Name or package.Type.Method.
func TestNames(t *testing.T) {
	t.Parallel()
	inBackticks := regexp.MustCompile("`([a-z]\\w*)\\.(?:([A-Za-z]\\w*)\\.)?([A-Za-z]\\w*)`")
	fileTypes := strings.Fields("exe go json lock log txt yaml")
	count := 0
	for _, page := range []string{"architecture.md", "../CONTRIBUTING.md"} {
		for _, match := range inBackticks.FindAllStringSubmatch(read(t, page), -1) {
			pkg, typ, name := match[1], match[2], match[3]
			if slices.Contains(fileTypes, name) {
				continue
			}
			count++
			declaration := regexp.MustCompile(`(?m)^(func|type|const|var) ` + name + `\b`)
			if typ != "" {
				declaration = regexp.MustCompile(`(?m)^func \((\w+ )?\*?` + typ + `\) ` + name + `\(`)
			}
			patterns := []string{pkg + "/*.go", "*/" + pkg + "/*.go"}
			if !declaration.MatchString(code(t, false, patterns...) + code(t, true, patterns...)) {
				t.Errorf("%s names %s, which does not exist", page, match[0])
			}
		}
	}
	if count < 30 {
		t.Errorf("the pages have %d names only", count)
	}
}

// notOurs are the parts of messages that the kubelet, the scheduler and Windows write.
var notOurs = []string{
	"Insufficient directx.microsoft.com/display",
	"hcs::CreateComputeSystem", ": The parameter is incorrect.",
	"no devices found allocated in local cache",
}

// Each message that the page on troubleshooting explains is one that the programs can
// write: each piece of it stands in one of their texts, such as that of an error.
func TestMessages(t *testing.T) {
	t.Parallel()
	_, list, _ := strings.Cut(read(t, "troubleshooting.md"), "<!-- messages: checked by TestMessages -->\n")
	list, _, _ = strings.Cut(list, "<!-- end -->\n")
	written, count := texts(t), 0
	for entry := range strings.SplitSeq(list, "\n- ") {
		messages, _, _ := strings.Cut(entry, "`:")
		for _, match := range inlineCode.FindAllStringSubmatch(messages+"`", -1) {
			count++
			for piece := range strings.SplitSeq(match[1], "…") {
				piece = strings.TrimSpace(piece)
				if !slices.Contains(notOurs, piece) && !strings.Contains(written, piece) {
					t.Errorf("no program writes %q", piece)
				}
			}
		}
	}
	if count < 15 {
		t.Errorf("the page has %d messages only", count)
	}
}

// texts returns the strings in the code of the programs, one in a line.
func texts(t *testing.T) (written string) {
	t.Helper()
	var source string
	for _, dir := range []string{"advertiser", "cmd", "decision", "discovery", "internal", "nri", "ocispec", "shim"} {
		source += code(t, false, dir+"/*.go", dir+"/*/*.go")
	}
	var s scanner.Scanner
	s.Init(token.NewFileSet().AddFile("", -1, len(source)), []byte(source), nil, 0)
	for {
		switch _, kind, literal := s.Scan(); kind {
		case token.STRING:
			text, err := strconv.Unquote(literal)
			testutil.NoError(t, err)
			written += text + "\n"
		case token.EOF:
			return written
		}
	}
}
