package doctor

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	godiff "github.com/google/go-cmp/cmp"

	"directx-nri/internal/capabilities"
	"directx-nri/internal/win32"
)

//go:generate go test -run ^TestTroubleshootingPage$ . -update

var update = flag.Bool("update", false, "write what docs/troubleshooting.md says of findings")

// What surrounds the part of the page that is made from here.
const (
	pageBegin = "<!-- findings: made by `make generate` -->\n"
	pageEnd   = "<!-- end -->\n"
)

// TestTroubleshootingPage has docs/troubleshooting.md show each finding that
// doctor can make, in its own words. A finding without an example fails it.
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
		t.Fatalf("%s has no place for the findings, from %q to %q", file, pageBegin, pageEnd)
	}
	made := findingsPage(t)
	if *update {
		if err := os.WriteFile(file, []byte(before+pageBegin+made+pageEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := godiff.Diff(old, made); diff != "" {
		t.Errorf("%s is not what doctor says; make generate writes it (-page +doctor):\n%s", file, diff)
	}
}

// findingsPage returns a section for each check, with an example of each finding.
func findingsPage(t *testing.T) string {
	t.Helper()
	var page strings.Builder
	sites := findingSites(t)
	match(sites, exampleFindings())
	for _, check := range checkNames(t) {
		fmt.Fprintf(&page, "\n### %s\n\n*%s*\n", check.value, check.means)
		shown := map[string]bool{}
		for _, s := range sites {
			if s.check != check.name {
				continue
			}
			if s.example == nil {
				t.Errorf("%s: no node of brokenNodes or unknownNodes has this finding; add one", s.place)
				continue
			}
			f := *s.example
			text := fmt.Sprintf("\n**%s**%s\n\n- Why it matters: %s.\n- What to do: %s.\n", escape(f.Problem), also(f.Severity == Unknown, " (`unknown`)"), escape(f.Why), escape(f.Fix))
			if !shown[text] {
				page.WriteString(text)
			}
			shown[text] = true
		}
		if len(shown) == 0 {
			t.Errorf("check %s has no finding", check.value)
		}
	}
	return page.String() + "\n"
}

// match gives each site an example. A finding belongs to the site that says most of
// its words, of equal ones to the first that has none yet.
func match(sites []*site, examples []Finding) {
	for i, f := range examples {
		var best *site
		for _, s := range sites {
			if !s.made(f) {
				continue
			}
			if best == nil || s.words() > best.words() || s.words() == best.words() && best.example != nil && s.example == nil {
				best = s
			}
		}
		if best != nil && best.example == nil {
			best.example = &examples[i]
		}
	}
}

// escape has Markdown show the text as it is.
func escape(text string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "_", `\_`, "<", `\<`, "[", `\[`).Replace(text)
}

// exampleFindings returns what is said of all nodes with something wrong, always in
// one order.
func exampleFindings() []Finding {
	var list []Finding
	for _, nodes := range []map[string]brokenNode{brokenNodes(), unknownNodes()} {
		for _, name := range slices.Sorted(maps.Keys(nodes)) {
			list = append(list, Judge(nodes[name].facts)...)
		}
	}
	return list
}

// unknownNodes returns nodes of which something could not be told.
func unknownNodes() map[string]brokenNode {
	errIO := errors.New("read: input/output error")
	return map[string]brokenNode{
		"a record folder that does not answer": {with(sound(), func(f *Facts) {
			f.Records.Err = fmt.Errorf("list /var/lib/directx-nri/allocations: %w", context.DeadlineExceeded)
		}), CheckRecords, ""},
		"a record folder on a disk that fails": {with(sound(), func(f *Facts) { f.Records.Err = fmt.Errorf("list /var/lib/directx-nri/allocations: %w", errIO) }), CheckRecords, ""},
		"not root":                             {with(sound(), func(f *Facts) { f.Records.Err, f.NRI.PluginErr = errClosed, errClosed }), CheckAccess, ""},
		"no inventory for the plugin": {with(sound(), func(f *Facts) {
			f.ServedBy, f.GPUs = ServedByNRI, GPUs{Err: errors.New("no inventory file is named")}
		}), CheckInventory, ""},
		"a disk that fails below a host folder": {with(sound(), func(f *Facts) { f.HostFolders = []Folder{{Path: "/srv/models", Err: errIO}} }), CheckExtraMounts, ""},
		"a disk that fails below our folders":   {with(sound(), func(f *Facts) { f.Folders[0].Err = errIO }), CheckPermissions, ""},
		"a disk that fails below the driver":    {with(sound(), func(f *Facts) { f.GPUs.List[0].FilesErr = errIO }), CheckFiles, ""},
		"a containerd of a strange version":     {with(sound(), func(f *Facts) { f.Containerd.Version = "main" }), CheckVersion, ""},
		"Windows that does not say": {with(soundWindows(), func(f *Facts) {
			f.Windows = &capabilities.Capabilities{Windows: win32.Version{Major: 10, Build: 20348, Server: true}, SchemasErr: errors.New("HcsGetServiceProperties: the parameter is incorrect")}
		}), CheckHCS, ""},
	}
}

// site is a place in the code that makes a finding.
type site struct {
	check    string // name of the constant
	value    string // what it says
	place    string
	severity Severity
	// The texts, with what they are at run time left open.
	problem, why, fix *regexp.Regexp
	example           *Finding
}

// made tells whether f may have been made here.
func (s *site) made(f Finding) bool {
	return f.Check == s.value && f.Severity == s.severity && s.problem.MatchString(f.Problem) && s.why.MatchString(f.Why) && s.fix.MatchString(f.Fix)
}

// words is how much of the texts is known before run time.
func (s *site) words() int {
	return len(s.problem.String()) + len(s.why.String()) + len(s.fix.String())
}

// findingSites returns all calls of problem and unknown in the code, in its order.
func findingSites(t *testing.T) []*site {
	t.Helper()
	var sites []*site
	values := map[string]string{}
	for _, check := range checkNames(t) {
		values[check.name] = check.value
	}
	for _, file := range parsed(t) {
		for _, declaration := range file.tree.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok || function.Body == nil {
				continue
			}
			texts := constants(function.Body)
			ast.Inspect(function.Body, func(node ast.Node) bool {
				call, ok := node.(*ast.CallExpr)
				if !ok {
					return true
				}
				method, ok := call.Fun.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				severity, ok := map[string]Severity{"problem": Problem, "unknown": Unknown}[method.Sel.Name]
				if !ok || len(call.Args) != 5 {
					return true
				}
				place := file.set.Position(call.Pos()).String()
				check, ok := call.Args[0].(*ast.Ident)
				if !ok {
					t.Errorf("%s: the check has to be a constant", place)
					return true
				}
				sites = append(sites, &site{
					check: check.Name, value: values[check.Name], place: place, severity: severity,
					problem: pattern(call.Args[2], texts), why: pattern(call.Args[3], texts), fix: pattern(call.Args[4], texts),
				})
				return true
			})
		}
	}
	if len(sites) < 60 {
		t.Errorf("the code has %d findings only", len(sites))
	}
	return sites
}

type source struct {
	set  *token.FileSet
	tree *ast.File
}

// parsed returns the package's files that judge.
func parsed(t *testing.T) []source {
	t.Helper()
	names, err := filepath.Glob("judge*.go")
	if err != nil {
		t.Fatal(err)
	}
	var files []source
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, source{set, tree})
	}
	return files
}

// constants returns those texts that a function declares for itself.
func constants(body *ast.BlockStmt) map[string]ast.Expr {
	found := map[string]ast.Expr{}
	ast.Inspect(body, func(node ast.Node) bool {
		if g, ok := node.(*ast.GenDecl); ok && g.Tok == token.CONST {
			for _, spec := range g.Specs {
				value := spec.(*ast.ValueSpec)
				for i, name := range value.Names {
					found[name.Name] = value.Values[i]
				}
			}
		}
		return true
	})
	return found
}

// pattern returns what texts an expression can come to.
func pattern(e ast.Expr, texts map[string]ast.Expr) *regexp.Regexp {
	return regexp.MustCompile("^" + open(e, texts) + "$")
}

func open(e ast.Expr, texts map[string]ast.Expr) string {
	const anything = ".*"
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil {
			return regexp.QuoteMeta(text)
		}
	case *ast.BinaryExpr:
		return open(e.X, texts) + open(e.Y, texts)
	case *ast.Ident:
		if text, ok := texts[e.Name]; ok {
			return open(text, texts)
		}
	case *ast.CallExpr:
		if f, ok := e.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Sprintf" {
			return regexp.MustCompile(`%(\[\d+\])?[a-z]`).ReplaceAllString(open(e.Args[0], texts), anything)
		}
	}
	return anything
}

// checkName is a check's constant, its value, and what is looked at.
type checkName struct{ name, value, means string }

// checkNames returns the checks in the order of judge.go.
func checkNames(t *testing.T) []checkName {
	t.Helper()
	var names []checkName
	for _, file := range parsed(t) {
		ast.Inspect(file.tree, func(node ast.Node) bool {
			value, ok := node.(*ast.ValueSpec)
			if !ok || len(value.Names) != 1 || !strings.HasPrefix(value.Names[0].Name, "Check") {
				return true
			}
			text, err := strconv.Unquote(value.Values[0].(*ast.BasicLit).Value)
			if err != nil || value.Comment == nil {
				t.Fatalf("%s: a check is a text, and a comment says what is looked at: %v", value.Names[0].Name, cmp.Or(err, errors.New("no comment")))
			}
			names = append(names, checkName{value.Names[0].Name, text, strings.TrimSpace(value.Comment.Text())})
			return true
		})
	}
	return names
}
