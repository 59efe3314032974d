//go:build unix

package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
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
		source := testSource(t, dir, name)
		return source == "" || row != "" && !strings.Contains(source, strconv.Quote(row)+":")
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

// testSource returns the text of a test of a package in a directory of the repository, "" if there is
// none.
func testSource(t *testing.T, dir, name string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if _, source, ok := strings.Cut(read(t, file), "\nfunc "+name+"("); ok {
			source, _, _ = strings.Cut(source, "\n}\n")
			return source
		}
	}
	return ""
}

// programs are the directories with the code of the programs.
var programs = []string{"advertiser", "cmd", "decision", "discovery", "internal", "nri", "ocispec", "shim"}

// notOurs are the parts of messages that the kubelet, the scheduler and Windows write.
var notOurs = []string{
	"GetPreferredAllocation rpc failed", "Insufficient directx.microsoft.com/display",
	"hcs::CreateComputeSystem", ": The parameter is incorrect.",
	"no devices found allocated in local cache",
}

// Each message that the page on troubleshooting explains is one that the programs can
// write: each piece of it stands in one of their texts, such as that of an error.
func TestMessages(t *testing.T) {
	t.Parallel()
	_, list, _ := strings.Cut(read(t, "troubleshooting.md"), "<!-- messages: checked by TestMessages -->\n")
	list, _, _ = strings.Cut(list, "<!-- end -->\n")
	written, count := texts(t, programs...), 0
	for entry := range strings.SplitSeq(list, "\n- ") {
		messages, _, _ := strings.Cut(entry, "`:")
		for _, match := range inlineCode.FindAllStringSubmatch(messages+"`", -1) {
			count++
			for piece := range strings.SplitSeq(match[1], "…") {
				piece = strings.TrimSpace(piece)
				inText := func(text string) bool { return strings.Contains(text, piece) }
				if !slices.Contains(notOurs, piece) && !slices.ContainsFunc(written, inText) {
					t.Errorf("no program writes %q", piece)
				}
			}
		}
	}
	if count < 15 {
		t.Errorf("the page has %d messages only", count)
	}
}

// Each name of Go code in the page on the architecture, such as `decision.Decider.Decide`,
// is declared.
func TestArchitectureNames(t *testing.T) {
	t.Parallel()
	declared := map[string]bool{} // packages, and what they declare
	for _, file := range sources(t, programs...) {
		declared[file.Name.Name] = true
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				name := d.Name.Name
				if d.Recv != nil {
					receiver := d.Recv.List[0].Type
					if pointer, ok := receiver.(*ast.StarExpr); ok {
						receiver = pointer.X
					}
					name = fmt.Sprint(receiver, ".", name)
				}
				declared[file.Name.Name+"."+name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok {
						declared[file.Name.Name+"."+s.Name.Name] = true
					}
				}
			}
		}
	}
	goName := regexp.MustCompile("`(([a-z]+)\\.\\w+(?:\\.\\w+)?)`")
	fileName := regexp.MustCompile(`\.(go|json|log|md|ya?ml)$`)
	names := goName.FindAllStringSubmatch(read(t, "architecture.md"), -1)
	for _, name := range names {
		if declared[name[2]] && !fileName.MatchString(name[1]) && !declared[name[1]] {
			t.Errorf("%s is not declared", name[1])
		}
	}
	if len(names) < 15 {
		t.Errorf("the page has %d names only", len(names))
	}
}

// Each file of the state directory is in the page on the architecture.
func TestStateDirectory(t *testing.T) {
	t.Parallel()
	page, count := read(t, "architecture.md"), 0
	for _, name := range regexp.MustCompile(`(?m)^\t\w+ += "(.+)"$`).FindAllStringSubmatch(read(t, "../internal/paths/state.go"), -1) {
		count++
		if !strings.Contains(page, "\n| `"+name[1]) {
			t.Errorf("the page does not have %s", name[1])
		}
	}
	if count == 0 {
		t.Error("no file was found")
	}
}

// texts returns the texts in the Go code below directories of the repository, without tests,
// comments and struct tags.
func texts(t *testing.T, roots ...string) (found []string) {
	t.Helper()
	add := func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			text, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Error(err)
			}
			found = append(found, text)
		}
		field, ok := n.(*ast.Field)
		return !ok || field.Tag == nil
	}
	for _, file := range sources(t, roots...) {
		ast.Inspect(file, add)
	}
	return found
}

// sources returns the Go files below directories of the repository, without tests.
func sources(t *testing.T, roots ...string) (files []*ast.File) {
	t.Helper()
	for _, root := range roots {
		err := filepath.WalkDir(filepath.Join("..", root), func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
				return err
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			files = append(files, parsed)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}
