package winpath

import (
	"path"
	"strings"
	"testing"
)

func TestMatchPath(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pattern, path string
		want          bool
	}{
		{"nvcuda.dll", "NVCUDA.DLL", true},
		{"nv*.dll", "nvapi64.dll", true},
		{"nv*.dll", `nv\api64.dll`, false},
		{"*", "a", true},
		{"*", `a\b`, false},
		{`*\*`, `a\b`, true},
		{`x86/*.exe`, `X86\tool.exe`, true},
		{"a?c", "abc", true},
		{"a?c", "ac", false},
		{"a*b*c", "aXbYbZc", true},
		{"a*b*c", "aXbYbZ", false},
		{"***", "abc", true},
		{"", "a", false},
		{"*.dll", "a.dll.x", false},
		{"ü*", "Üx", true},
		{"*aab", "aaab", true},
		{"[a]", "a", false},
		{"[a]", "[A]", true},
		// Backtracking into every * would take too long.
		{strings.Repeat("*a", 200) + "b", strings.Repeat("a", 4000), false},
	} {
		if got := MatchPath(test.pattern, test.path); got != test.want {
			t.Errorf("match %q with %q: %t", test.path, test.pattern, got)
		}
	}
}

func TestWithin(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		dir, path string
		want      bool
	}{
		{`C:\a`, `C:\a\b`, true},
		{`C:\a`, `c:\A\b`, true},
		{`C:\a\`, `C:\a`, true},
		{`C:\a`, `C:\ab`, false},
		{`C:\a`, `C:\a\..\b`, false},
		{`C:\`, `C:\a`, true},
		{`C:\`, `D:\a`, false},
		{`C:\a`, `\\?\C:\a\b`, true},
		{`C:\a`, `\\server\a\b`, false},
		{`C:\a\b`, `C:\a`, false},
	} {
		if got := Within(test.dir, test.path); got != test.want {
			t.Errorf("%q within %q: %t", test.path, test.dir, got)
		}
	}
}

func FuzzMatch(f *testing.F) {
	f.Add("a*b?c", "aXXbYc")
	f.Add("**", "")
	f.Add("ſ*", "s")
	f.Add("?*??", "{窈")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if !Match("*"+pattern, name) && Match(pattern, name) {
			t.Error("a leading * prevents a match")
		}
		// path.Match agrees where its syntax is the same. Its * ends within a character of several bytes.
		plain := func(s string) bool {
			return len(s) < 50 && !strings.ContainsFunc(s, func(r rune) bool { return r > '~' || strings.ContainsRune(`[]\/`, r) }) && strings.ToUpper(s) == s
		}
		if plain(pattern) && plain(name) {
			if want, err := path.Match(pattern, name); err == nil && want != Match(pattern, name) {
				t.Errorf("match %q with %q: %t, path.Match %t", name, pattern, !want, want)
			}
		}
	})
}
