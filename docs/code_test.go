//go:build unix

package docs

import (
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
			files, _ := filepath.Glob("../" + pkg + "/*.go")
			below, _ := filepath.Glob("../*/" + pkg + "/*.go")
			declares := func(file string) bool { return declaration.MatchString(read(t, file)) }
			if !slices.ContainsFunc(append(files, below...), declares) {
				t.Errorf("%s names %s, which does not exist", page, match[0])
			}
		}
	}
	if count < 30 {
		t.Errorf("the pages have %d names only", count)
	}
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
	for _, root := range roots {
		err := filepath.WalkDir(filepath.Join("..", root), func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
				return err
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err == nil {
				ast.Inspect(parsed, add)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}
