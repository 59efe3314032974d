package show

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// golden compares got with testdata/golden/NAME.txt.
func golden(t *testing.T, name, got string) {
	t.Helper()
	testutil.Golden(t, filepath.Join("testdata", "golden", name+".txt"), got)
}

// withoutDir returns text with DIR in place of dir, and with slashes in the paths below it.
func withoutDir(t *testing.T, text, dir string) string {
	t.Helper()
	quoted, err := json.Marshal(dir) // In JSON, and in what Go quotes, a backslash is doubled.
	testutil.NoError(t, err)
	for _, form := range []string{strings.Trim(string(quoted), `"`), dir} {
		text = strings.ReplaceAll(text, form, "DIR")
	}
	below := regexp.MustCompile(`DIR(\\+[^\\\s"',;:]+)+`)
	return below.ReplaceAllStringFunc(text, func(path string) string {
		return strings.ReplaceAll(strings.ReplaceAll(path, `\\`, "/"), `\`, "/")
	})
}
