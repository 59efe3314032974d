//go:build unix

package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// notOurs are the parts of messages that the kubelet and the scheduler write.
var notOurs = []string{"UnexpectedAdmissionError", "GetPreferredAllocation rpc failed", "Insufficient directx.microsoft.com/display"}

// Each message that the page on troubleshooting explains is one that the programs
// can write: each piece of it stands in their code.
func TestMessages(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "<!-- messages: checked by TestMessages -->\n")
	table, _, _ = strings.Cut(table, "<!-- end -->\n")
	code, count := literals(t), 0
	for _, row := range strings.Split(table, "\n") {
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

// written reports whether a piece of a message stands in the code: as it is, or in
// up to three parts of at least 8 bytes, such as a text, a constant and the error
// behind it.
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

// literals returns all strings of the programs' code.
func literals(t *testing.T) string {
	t.Helper()
	var texts []string
	for _, root := range []string{"advertiser", "cmd", "discovery", "internal", "nri", "ocispec"} {
		err := filepath.WalkDir(filepath.Join("..", root), func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(node ast.Node) bool {
				if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
					text, _ := strconv.Unquote(literal.Value)
					texts = append(texts, text)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return strings.Join(texts, "\x00")
}
