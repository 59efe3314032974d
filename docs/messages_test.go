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

// notOurs are the parts of messages that the kubelet and the scheduler write.
var notOurs = []string{"UnexpectedAdmissionError", "GetPreferredAllocation rpc failed", "Insufficient directx.microsoft.com/display"}

var inCode = regexp.MustCompile("`([^`]+)`")

// Each message that the page on troubleshooting explains is one that the programs
// can write: each piece of it stands in their code.
func TestMessages(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	code := strings.Join(literals(t), "\x00")
	count := 0
	for i, table := range strings.Split(string(text), "<!-- messages: checked by TestMessages -->\n") {
		if table, _, found := strings.Cut(table, "<!-- end -->\n"); i > 0 && found {
			count += checkMessages(t, code, table)
		}
	}
	if count < 15 {
		t.Errorf("the page has %d messages only", count)
	}
}

// checkMessages checks the first column of a table, and returns how many messages
// it has.
func checkMessages(t *testing.T, code, table string) int {
	t.Helper()
	count := 0
	for _, row := range strings.Split(table, "\n") {
		said, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
		for _, match := range inCode.FindAllStringSubmatch(said, -1) {
			count++
			for piece := range strings.SplitSeq(match[1], "…") {
				if piece = strings.TrimSpace(piece); !written(code, piece) {
					t.Errorf("no program writes %q", piece)
				}
			}
		}
	}
	return count
}

// written reports whether a piece of a message stands in the code: as it is, or in
// up to three parts, such as a text, a constant and the error behind it.
func written(code, piece string) bool {
	if slices.Contains(notOurs, piece) {
		return true
	}
	for range 3 {
		rest := piece
		for rest != "" && !strings.Contains(code, rest) {
			rest = rest[:strings.LastIndex(" "+rest, " ")]
			rest = strings.TrimRight(rest, " :")
		}
		if piece = strings.TrimLeft(piece[len(rest):], " :"); piece == "" {
			return true
		}
		if len(rest) < shortest {
			return false
		}
	}
	return false
}

// shortest is how long a part has to be to be told from any other text.
const shortest = 8

func TestWritten(t *testing.T) {
	t.Parallel()
	const code = "was allocated and %w\x00it is gone from here"
	for piece, want := range map[string]bool{
		"was allocated":                            true,
		"was allocated and it is gone":             true,
		"was allocated and: it is gone":            true,
		"was allocated and was forgotten":          false,
		"something else":                           false,
		"was allocated and it is gone or the like": false,
	} {
		if got := written(code, piece); got != want {
			t.Errorf("%q: %t", piece, got)
		}
	}
}

// literals returns all texts of the programs' code.
func literals(t *testing.T) []string {
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
				literal, ok := node.(*ast.BasicLit)
				if !ok || literal.Kind != token.STRING {
					return true
				}
				if text, err := strconv.Unquote(literal.Value); err == nil {
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
	return texts
}
