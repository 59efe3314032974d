package main

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// update has the golden files written in place of compared: go test ./cmd/dxctl
// -update. Look at the difference before it is committed.
var update = flag.Bool("update", false, "write the golden files")

// golden compares got with testdata/golden/NAME.txt. What differs from run to run is
// taken out of got with [neutral].
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "golden", name+".txt")
	got = strings.ReplaceAll(got, "\r\n", "\n")
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; go test ./cmd/dxctl -update writes it", err)
	}
	if diff := cmp.Diff(strings.ReplaceAll(string(want), "\r\n", "\n"), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// clock is a time as our commands print it, with a date or without.
var clock = regexp.MustCompile(`\b(\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?`)

// neutral returns text without what differs from run to run and from one system
// to the other: each dir becomes the name that it has in dirs, paths below
// it are written with slashes, and times become TIME.
func neutral(text string, dirs map[string]string) string {
	// A dir comes before the one that it is in.
	for _, dir := range slices.SortedFunc(maps.Keys(dirs), func(a, b string) int { return len(b) - len(a) }) {
		name := dirs[dir]
		// In JSON, and in what Go quotes, a backslash is doubled.
		quoted, err := json.Marshal(dir)
		if err != nil {
			return err.Error()
		}
		for _, form := range []string{strings.Trim(string(quoted), `"`), dir} {
			text = strings.ReplaceAll(text, form, name)
		}
		below := regexp.MustCompile(regexp.QuoteMeta(name) + `(\\+[^\\\s"',;:]+)+`)
		text = below.ReplaceAllStringFunc(text, func(path string) string {
			return strings.ReplaceAll(strings.ReplaceAll(path, `\\`, "/"), `\`, "/")
		})
	}
	return clock.ReplaceAllString(text, "TIME")
}
