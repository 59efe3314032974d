package glob

import (
	"testing"
	"unicode"
)

func TestMatch(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pattern, text string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"*", "", true}, {"?", "", false}, {"?", "é", true},
		{"a*b*c", "aXbYbZc", true}, {"a*b*c", "aXc", false}, {"**", "x", true}, {"a?", "a", false},
		{"NVIDIA*T4", "nvidia tesla t4", true}, {"T4", "Tesla T4", false}, {"[a]", "a", false},
	} {
		if got := Match(test.pattern, test.text, unicode.ToLower); got != test.want {
			t.Errorf("%q, %q: %t", test.pattern, test.text, got)
		}
	}
	if Match("A", "a", func(r rune) rune { return r }) {
		t.Error("case is not regarded where it counts")
	}
}
