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
