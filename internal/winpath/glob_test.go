package winpath

import (
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
		{"ü*", "Üx", true},
		{"[a]", "a", false},
		{"[a]", "[A]", true},
		{"*]", `x]`, true},
		// Backtracking into every * would take too long.
		{strings.Repeat("*a", 200) + "b", strings.Repeat("a", 4000), false},
	} {
		if got := MatchPath(test.pattern, test.path); got != test.want {
			t.Errorf("match %q with %q: %t", test.path, test.pattern, got)
		}
	}
}

// Match is also for text that is no path.
func TestMatch(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"a*d", `a/b\?D`, `*\c*`} {
		if !Match(pattern, `A/b\cd`) {
			t.Errorf("%s does not match", pattern)
		}
	}
}
