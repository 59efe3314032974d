package localgrpc

import (
	"strings"
	"testing"
	"time"
)

func TestParseStart(t *testing.T) {
	t.Parallel()
	const behind = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 0 123 4 5 6\n"
	for stat, want := range map[string]time.Duration{
		"42 (containerd)" + behind:    1230 * time.Millisecond,
		"42 (a) R 1 (b 9 9)" + behind: 1230 * time.Millisecond,
		"42 (containerd) S 1":         -1,
		"":                            -1,
		"42 (x)" + strings.Replace(behind, "123", "soon", 1): -1,
	} {
		got, err := parseStart(stat)
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%q: %v, %v", stat, got, err)
		}
	}
}

func FuzzParseStart(f *testing.F) {
	f.Add("42 (containerd) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 0 123 4 5 6\n")
	f.Add("(")
	f.Add(") ) )")
	f.Fuzz(func(_ *testing.T, stat string) { _, _ = parseStart(stat) })
}
