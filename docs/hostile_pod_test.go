//go:build unix

package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Each line of the page on hostile pods names the tests that hold it, and they
// exist: with package, function and row, or with the row of the function that a
// paragraph names.
func TestHostilePodLinesHaveTheirTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("hostile-pod.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([a-z0-9/]+) ((?:Test|Fuzz)[A-Za-z0-9]+)(?:/([^`]+))?`")
	list := regexp.MustCompile("The rows are those of `([a-z0-9/]+) (Test[A-Za-z0-9]+)`")
	var dir, function string
	lines := 0
	for number, line := range strings.Split(string(page), "\n") {
		switch of := list.FindStringSubmatch(line); {
		case of != nil:
			dir, function = of[1], of[2]
		case strings.HasPrefix(line, "#"):
			dir, function = "", ""
		}
		var tests [][]string
		switch {
		case strings.HasPrefix(line, "| ") && !strings.HasSuffix(line, " test |"):
			tests = named.FindAllStringSubmatch(line, -1)
		case strings.HasPrefix(line, "- ") && function != "":
			_, rows, _ := strings.Cut(line, ": ")
			for _, row := range inlineCode.FindAllStringSubmatch(rows, -1) {
				tests = append(tests, []string{row[0], dir, function, row[1]})
			}
		default:
			continue
		}
		lines++
		if len(tests) == 0 {
			t.Errorf("line %d names no test: %s", number+1, line)
		}
		for _, test := range tests {
			if !hasTest(t, filepath.Join("..", test[1]), test[2], test[3]) {
				t.Errorf("line %d: there is no %s", number+1, test[0])
			}
		}
	}
	if lines < 30 {
		t.Errorf("the page has %d lines about what an author tries", lines)
	}
}

// hasTest reports whether a package has a test, with a row of that name if one is
// given: the key of a composite literal in its code.
func hasTest(t *testing.T, dir, test, row string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range parsed.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok || function.Name.Name != test {
				continue
			}
			found = found || row == ""
			ast.Inspect(function, func(node ast.Node) bool {
				if pair, ok := node.(*ast.KeyValueExpr); ok {
					key, ok := pair.Key.(*ast.BasicLit)
					found = found || ok && key.Value == strconv.Quote(row)
				}
				return true
			})
		}
	}
	return found
}
