//go:build unix

package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// inspect calls visit for each part of the Go code below directories of the repository, of
// tests or of all the rest, with the function that it belongs to.
func inspect(t *testing.T, tests bool, visit func(file, function string, node ast.Node), roots ...string) {
	t.Helper()
	for _, root := range roots {
		err := filepath.WalkDir(filepath.Join("..", root), func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") != tests {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, declaration := range file.Decls {
				function := ""
				if f, ok := declaration.(*ast.FuncDecl); ok {
					function = f.Name.Name
				}
				ast.Inspect(declaration, func(node ast.Node) bool { visit(name, function, node); return true })
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Each line of the page on hostile pods has tests in testdata/hostile-pod.txt, and they
// exist: with package, function and row.
func TestHostilePodLinesHaveTheirTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("hostile-pod.md")
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile("testdata/hostile-pod.txt")
	if err != nil {
		t.Fatal(err)
	}
	// A row is the key of a composite literal in the code.
	found := map[string]bool{}
	inspect(t, true, func(file, function string, node ast.Node) {
		test := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(file)), "../") + " " + function
		found[test] = true
		if pair, ok := node.(*ast.KeyValueExpr); ok {
			if key, ok := pair.Key.(*ast.BasicLit); ok {
				row, _ := strconv.Unquote(key.Value)
				found[test+"/"+row] = true
			}
		}
	}, "advertiser", "internal", "nri", "ocispec", "test")
	tests := map[string][]string{}
	for line := range strings.Lines(string(list)) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		tests[fields[0]] = fields[1:]
	}
	tried, _, _ := strings.Cut(string(page), "\n## What is not prevented\n")
	lines := 0
	for _, line := range regexp.MustCompile(`(?m)^(?:- |\| )(.+?)(?: \|.*)?$`).FindAllStringSubmatch(tried, -1) {
		if line[1] == "what the author tries" {
			continue
		}
		lines++
		if of := tests[line[1]]; len(of) == 0 || slices.ContainsFunc(of, func(test string) bool { return !found[test] }) {
			t.Errorf("%q has no test, or one that does not exist: %q", line[1], of)
		}
	}
	if lines < 30 {
		t.Errorf("the page has %d lines about what an author tries", lines)
	}
}

// notOurs are the parts of messages that the kubelet and the scheduler write.
var notOurs = []string{"UnexpectedAdmissionError", "GetPreferredAllocation rpc failed", "Insufficient directx.microsoft.com/display"}

// Each message that the page on troubleshooting explains is one that the programs can
// write: each piece of it stands in their code.
func TestMessages(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "<!-- messages: checked by TestMessages -->\n")
	table, _, _ = strings.Cut(table, "<!-- end -->\n")
	var literals strings.Builder
	inspect(t, false, func(_, _ string, node ast.Node) {
		if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			text, _ := strconv.Unquote(literal.Value)
			literals.WriteString(text + "\x00")
		}
	}, "advertiser", "cmd", "discovery", "internal", "nri", "ocispec")
	code, count := literals.String(), 0
	for row := range strings.SplitSeq(table, "\n") {
		message, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
		for _, match := range inlineCode.FindAllStringSubmatch(message, -1) {
			count++
			for piece := range strings.SplitSeq(match[1], "…") {
				if piece = strings.TrimSpace(piece); !slices.Contains(notOurs, piece) && !written(code, piece) {
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
