package hostfiles

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// tree makes a small driver store.
func tree(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for path, content := range map[string]string{
		"a.dll": "a", "B.dll": "a", "c.exe": "c", "x86/a.dll": "x", "x86/deep/d.dll": "d", "empty": "", "other/b.dll": "ab",
	} {
		testutil.WriteFile(t, filepath.Join(dir, filepath.FromSlash(path)), content, 0o644)
	}
	return dir
}

func TestGlob(t *testing.T) {
	t.Parallel()
	dir := tree(t)
	for pattern, want := range map[string][]string{
		"*.dll": {"B.dll", "a.dll"}, "b.DL?": {"B.dll"}, "a.dll": {"a.dll"}, `*\*.dll`: {`other\b.dll`, `x86\a.dll`}, `x86\*\d.dll`: {`x86\deep\d.dll`},
		"x86": nil, "none*": nil, `none\*.dll`: nil, `..\*`: nil,
	} {
		if got, err := Root("").Glob(dir, pattern); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v, want %q", pattern, got, err, want)
		}
	}
	if got, err := Root("").Glob(filepath.Join(dir, "nowhere"), "*"); err != nil || got != nil {
		t.Errorf("in no directory: %q, %v", got, err)
	}
}

func TestRegularFiles(t *testing.T) {
	t.Parallel()
	dir := tree(t)
	paths := map[string]bool{"a.dll": true, "x86/a.dll": true, "x86": false}
	if runtime.GOOS == "windows" {
		paths["X86/A.DLL"] = true
	}
	for path, regular := range paths {
		path := filepath.FromSlash(path)
		final, isRegular, err := Root("").Resolve(filepath.Join(dir, path))
		if err != nil || isRegular != regular || !strings.HasSuffix(final, strings.ToLower(path)) {
			t.Errorf("%s: %q, regular %t, %v", path, final, isRegular, err)
		}
	}
	if final, _, err := Root("").Resolve(filepath.Join(dir, "nowhere", "a.dll")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing: %q, %v", final, err)
	}
}

func TestSameContent(t *testing.T) {
	t.Parallel()
	dir := tree(t)
	sameContent := func(a, b string) (bool, error) {
		return Root("").SameContent(filepath.Join(dir, filepath.FromSlash(a)), filepath.Join(dir, filepath.FromSlash(b)))
	}
	for _, test := range []struct {
		a, b string
		want bool
	}{
		{"a.dll", "B.dll", true}, {"a.dll", "a.dll", true}, {"a.dll", "c.exe", false}, {"a.dll", "other/b.dll", false}, {"empty", "a.dll", false}, {"empty", "empty", true},
	} {
		if got, err := sameContent(test.a, test.b); err != nil || got != test.want {
			t.Errorf("%s and %s: %t, %v", test.a, test.b, got, err)
		}
	}
	if same, err := sameContent("a.dll", "nowhere"); err == nil || same {
		t.Errorf("with nothing: %t, %v", same, err)
	}
	if same, err := sameContent("x86", "x86"); err == nil || same {
		t.Errorf("two directories: %t, %v", same, err)
	}
	testutil.NoError(t, os.Truncate(filepath.Join(dir, "a.dll"), maxCompared+1))
	if same, err := sameContent("a.dll", "a.dll"); err != nil || same {
		t.Errorf("a large file: %t, %v", same, err)
	}
}
