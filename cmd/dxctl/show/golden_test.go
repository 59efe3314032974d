package show

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// golden compares got with testdata/golden/NAME.txt.
func golden(t *testing.T, name, got string) {
	t.Helper()
	testutil.Golden(t, filepath.Join("testdata", "golden", name+".txt"), got)
}

// neutral returns text without what differs between runs and systems: the paths of dirs are
// replaced by their names, and paths below them have slashes.
func neutral(text string, dirs map[string]string) string {
	// A directory is replaced before its parent.
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
	return text
}
