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

// windowsTree makes a small driver store, on Windows in a directory of its own.
func windowsTree(t *testing.T) (root Root, dir string) {
	t.Helper()
	top := t.TempDir()
	base := top
	if runtime.GOOS == "windows" {
		dir = top
	} else {
		base, dir = filepath.Join(top, "C:", "store"), `C:\store`
	}
	for path, content := range map[string]string{
		"a.dll": "a", "B.dll": "a", "c.exe": "c", "x86/a.dll": "x", "x86/deep/d.dll": "d", "empty": "", "other/b.dll": "ab",
	} {
		testutil.WriteFile(t, filepath.Join(base, filepath.FromSlash(path)), content, 0o644)
	}
	return Root(top), dir
}

func TestGlob(t *testing.T) {
	t.Parallel()
	root, dir := windowsTree(t)
	for _, test := range []struct {
		pattern string
		limit   int
		want    []string
	}{
		{"*.dll", 10, []string{"B.dll", "a.dll"}},
		{"b.DL?", 10, []string{"B.dll"}},
		{"a.dll", 10, []string{"a.dll"}},
		{`*\*.dll`, 10, []string{`other\b.dll`, `x86\a.dll`}},
		{`x86\*\d.dll`, 10, []string{`x86\deep\d.dll`}},
		{"*", 2, []string{"B.dll", "a.dll"}},
		{"x86", 10, nil},
		{"none*", 10, nil},
		{`none\*.dll`, 10, nil},
		{`..\*`, 10, nil},
		{`C:\*`, 10, nil},
	} {
		got, err := root.Glob(dir, test.pattern, test.limit)
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, %v, want %q", test.pattern, got, err, test.want)
		}
	}
	if got, err := root.Glob(dir+`\nowhere`, "*", 10); err != nil || got != nil {
		t.Errorf("in no directory: %q, %v", got, err)
	}
}

func TestResolveWindowsPath(t *testing.T) {
	t.Parallel()
	root, dir := windowsTree(t)
	paths := map[string]bool{`\a.dll`: true, `\x86\a.dll`: true, `\x86`: false}
	if runtime.GOOS == "windows" {
		paths[`\X86\A.DLL`] = true
	}
	for path, regular := range paths {
		final, isRegular, err := root.Resolve(dir + path)
		if err != nil || isRegular != regular || !strings.HasSuffix(final, strings.ToLower(path)) {
			t.Errorf("%s: %q, regular %t, %v", path, final, isRegular, err)
		}
	}
	for _, path := range []string{dir + `\nowhere`, dir + `\nowhere\a.dll`} {
		if final, _, err := root.Resolve(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %q, %v", path, final, err)
		}
	}
}

func TestSameContent(t *testing.T) {
	t.Parallel()
	root, dir := windowsTree(t)
	for _, test := range []struct {
		a, b string
		want bool
	}{
		{"a.dll", "B.dll", true}, {"a.dll", "a.dll", true}, {"a.dll", "c.exe", false}, {"a.dll", `other\b.dll`, false}, {"empty", "a.dll", false}, {"empty", "empty", true},
	} {
		got, err := root.SameContent(dir+`\`+test.a, dir+`\`+test.b)
		if err != nil || got != test.want {
			t.Errorf("%s and %s: %t, %v", test.a, test.b, got, err)
		}
	}
	if same, err := root.SameContent(dir+`\a.dll`, dir+`\nowhere`); err == nil || same {
		t.Errorf("with nothing: %t, %v", same, err)
	}
	if same, err := root.SameContent(dir+`\x86`, dir+`\x86`); err == nil || same {
		t.Errorf("two directories: %t, %v", same, err)
	}
	testutil.NoError(t, os.Truncate(filepath.Join(root.localPath(dir), "a.dll"), maxCompared+1))
	if same, err := root.SameContent(dir+`\a.dll`, dir+`\a.dll`); err != nil || same {
		t.Errorf("a large file: %t, %v", same, err)
	}
}
