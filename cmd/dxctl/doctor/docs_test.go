package doctor

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

//go:generate go test -run Page$ . -update

var update = flag.Bool("update", false, "write the claims into docs/hardware.md")

// TestHardwarePage compares the generated part of docs/hardware.md with the claims.
func TestHardwarePage(t *testing.T) {
	t.Parallel()
	const file, begin, end = "../../../docs/hardware.md", "<!-- claims: made by `make generate` -->\n", "<!-- end -->\n"
	var want strings.Builder
	for _, c := range Claims(Facts{}, nil) {
		fmt.Fprintf(&want, "\n- %s", c.Claim)
	}
	want.WriteString("\n\n")
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(page), begin)
	old, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no section from %q to %q", file, begin, end)
	}
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+want.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(old, want.String()); diff != "" {
		t.Errorf("%s is out of date; run 'make generate' (-page +claims):\n%s", file, diff)
	}
}
