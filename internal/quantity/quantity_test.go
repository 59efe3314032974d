package quantity

import (
	"math"
	"strings"
	"testing"
)

func TestParseBytes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]uint64{
		"0": 0, "1": 1, "16106127360": 15 << 30, "1Ki": 1 << 10, "8Mi": 8 << 20, "8Gi": 8 << 30, "8GiB": 8 << 30, "1KiB": 1 << 10, "2Ti": 2 << 40,
		"18446744073709551615": math.MaxUint64, "17179869183Gi": 17179869183 << 30,
	} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "Gi", "8G", "8GB", "8B", "8iB", "8i", "8 Gi", "08", "+8", "-8", "1.5Gi", "0x10", "8gi", "8GiBB", "8GiiB", "17179869184Gi", "18446744073709551616", strings.Repeat("9", 200),
	} {
		if got, err := ParseBytes(text); err == nil || len(err.Error()) > 250 {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
}

func TestFormatBytes(t *testing.T) {
	t.Parallel()
	for want, n := range map[string]uint64{"0": 0, "1": 1, "1025": 1025, "1Ki": 1 << 10, "15Gi": 15 << 30, "2Ti": 2 << 40, "1024Ti": 1 << 50} {
		if got := FormatBytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
		if got, err := ParseBytes(want); err != nil || got != n {
			t.Errorf("%s: %d, %v", want, got, err)
		}
	}
}
